//! A reimplementation of NCCL's reader of topology files: from what NCCL 2.28 accepted and refused
//! on a machine with a GPU, and from its documented limits, not from our writer. It accepts less
//! than XML: only space, line feed and carriage return are blank, no prolog, attributes behind one
//! space each.

/// Elements that are kept at most.
const MOST_NODES: usize = 256;
/// Elements in one element at most, of NCCL 2.28; 640 since.
const MOST_BELOW: usize = 128;
/// Attributes that are kept of an element; more are read and dropped.
const MOST_ATTRIBUTES: usize = 16;
/// Bytes of a name or value at most.
const LONGEST: usize = 254;

/// Which elements are known in which; others are skipped with their content.
const KNOWN: [(&str, &[&str]); 7] = [
    ("", &["system"]),
    ("system", &["cpu"]),
    ("cpu", &["pci", "nic"]),
    ("pci", &["pci", "gpu", "nic"]),
    ("gpu", &["nvlink", "c2c"]),
    ("nic", &["net"]),
    ("net", &[]),
];

/// Rates of a lane in 100 Mbit/s by the beginning of `link_speed`; any other counts as 60.
const RATES: [(&str, u32); 11] = [
    ("2.5 GT/s", 15),
    ("5 GT/s", 30),
    ("8 GT/s", 60),
    ("16 GT/s", 120),
    ("32 GT/s", 240),
    ("2.5 GT/s PCIe", 15),
    ("5.0 GT/s PCIe", 30),
    ("8.0 GT/s PCIe", 60),
    ("16.0 GT/s PCIe", 120),
    ("32.0 GT/s PCIe", 240),
    ("64.0 GT/s PCIe", 480),
];

/// Why a file is refused, as `ncclCommInit` returns it.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// 3: it cannot be read.
    Internal(String),
    /// 5: it is of another version.
    Usage(String),
}

/// An element.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its attributes, in order.
    pub attributes: Vec<(String, String)>,
    /// Known elements in it, in order.
    pub below: Vec<Node>,
}

/// A function or switch as NCCL then knows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its address.
    pub busid: String,
    /// The cell that it is below.
    pub numaid: String,
    /// Addresses of the switches above it, the outermost first.
    pub above: Vec<String>,
    /// Prefix of its class that counts: `0x03`, `0x0604`.
    pub class: String,
    /// Rate of the link above it in MB/s; none if NCCL asks the guest.
    pub rate: Option<u32>,
}

impl Node {
    /// The value of an attribute.
    pub fn attr(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// How many elements these are, itself included.
    pub fn count(&self) -> usize {
        1 + self.below.iter().map(Node::count).sum::<usize>()
    }

    /// Every `pci` below, in order.
    pub fn placed(&self) -> Vec<Placed> {
        let mut all = Vec::new();
        for cpu in &self.below {
            let numaid = cpu.attr("numaid").unwrap_or_default();
            cpu.place(numaid, &[], &mut all);
        }
        all
    }

    /// Adds the `pci` in this element.
    fn place(&self, numaid: &str, above: &[String], all: &mut Vec<Placed>) {
        for pci in self.below.iter().filter(|node| node.name == "pci") {
            let busid = pci.attr("busid").unwrap_or_default().to_owned();
            let class = pci.attr("class").unwrap_or_default().to_owned();
            let speed = pci.attr("link_speed").filter(|speed| !speed.is_empty());
            let width = pci.attr("link_width").and_then(|width| width.parse::<u32>().ok());
            let lane = |speed: &str| {
                RATES
                    .iter()
                    .find(|(known, _)| speed.starts_with(known))
                    .map_or(60, |(_, rate)| *rate)
            };
            let rate = speed.zip(width).map(|(speed, width)| lane(speed) * width * 1000 / 80);
            let (numaid, above) = (numaid.to_owned(), above.to_vec());
            let within = [&above[..], std::slice::from_ref(&busid)].concat();
            all.push(Placed { busid, numaid: numaid.clone(), above, class, rate });
            pci.place(&numaid, &within, all);
        }
    }
}

/// Reads a file.
pub fn read(bytes: &[u8]) -> Result<Node, Refused> {
    let mut reader = Reader { bytes, at: 0, nodes: 0 };
    let mut top = Node::default();
    reader.inside(&mut top, true)?;
    let [system] = &mut top.below[..] else {
        return Err(Refused::Internal(format!("{} systems", top.below.len())));
    };
    match system.attr("version") {
        Some("1") => Ok(std::mem::take(system)),
        other => Err(Refused::Usage(format!("version {other:?}"))),
    }
}

/// What an opening tag begins.
enum Tag {
    /// An element with others in it.
    Open(Node),
    /// An element with none.
    Single(Node),
    /// The end of one.
    Close(String),
    /// The end of the file.
    End,
}

/// A reading in progress.
struct Reader<'b> {
    /// The file.
    bytes: &'b [u8],
    /// The next byte.
    at: usize,
    /// Elements that are kept.
    nodes: usize,
}

/// Refuses a file.
fn refuse<T>(why: String) -> Result<T, Refused> {
    Err(Refused::Internal(why))
}

impl Reader<'_> {
    /// The next byte.
    fn next(&mut self) -> Result<char, Refused> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte.map(char::from).ok_or_else(|| Refused::Internal("unexpected end".into()))
    }

    /// Reads elements into one until it ends; `is_known`: whether known ones are kept.
    fn inside(&mut self, head: &mut Node, is_known: bool) -> Result<(), Refused> {
        let known = KNOWN.iter().find(|(name, _)| *name == head.name).map(|(_, below)| *below);
        let known = known.filter(|_| is_known).unwrap_or_default();
        loop {
            let (mut node, is_open) = match self.tag()? {
                Tag::End if head.name.is_empty() => return Ok(()),
                Tag::End => return refuse(format!("unterminated {}", head.name)),
                Tag::Close(name) if name == head.name => return Ok(()),
                Tag::Close(name) => return refuse(format!("mismatch: {} / {name}", head.name)),
                Tag::Open(node) => (node, true),
                Tag::Single(node) => (node, false),
            };
            let keep = known.contains(&node.name.as_str());
            if keep {
                self.nodes += 1;
                if self.nodes >= MOST_NODES {
                    return refuse(format!("limited to {MOST_NODES} nodes"));
                }
            }
            if is_open {
                self.inside(&mut node, keep)?;
            }
            if keep && head.below.len() == MOST_BELOW {
                return refuse(format!("limited to {MOST_BELOW} subnodes"));
            }
            if keep {
                head.below.push(node);
            }
        }
    }

    /// Reads the next tag; comments are skipped.
    fn tag(&mut self) -> Result<Tag, Refused> {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\r')) {
            self.at += 1;
        }
        if self.at >= self.bytes.len() {
            return Ok(Tag::End);
        }
        match self.next()? {
            '<' => {}
            other => return refuse(format!("expecting '<', got {other:?}")),
        }
        if self.bytes[self.at..].starts_with(b"!--") {
            let rest = &self.bytes[self.at..];
            let Some(end) = rest.windows(3).position(|three| three == b"-->") else {
                return refuse("unterminated comment".into());
            };
            self.at += end + 3;
            return self.tag();
        }
        let (name, mut last) = self.word()?;
        if name.is_empty() && last == '/' {
            return match self.word()? {
                (name, '>') => Ok(Tag::Close(name)),
                (name, other) => refuse(format!("unexpected {other:?} in the end of {name}")),
            };
        }
        let mut node = Node { name, ..Node::default() };
        while last == ' ' {
            let (key, end) = self.word()?;
            let mut value = String::new();
            last = end;
            if end == '=' {
                value = self.value()?;
                last = self.next()?;
            }
            if node.attributes.len() < MOST_ATTRIBUTES {
                node.attributes.push((key, value));
            }
        }
        let is_single = last == '/';
        if is_single {
            last = self.word()?.1;
        }
        match last {
            '>' if is_single => Ok(Tag::Single(node)),
            '>' => Ok(Tag::Open(node)),
            other => refuse(format!("expected >, got {other:?}")),
        }
    }

    /// Reads a name with the character that ends it.
    fn word(&mut self) -> Result<(String, char), Refused> {
        let mut word = String::new();
        loop {
            match self.next()? {
                end @ (' ' | '>' | '/' | '\n' | '\r' | '=') => return Ok((word, end)),
                _ if word.len() == LONGEST => return refuse(format!("name {word} too long")),
                letter => word.push(letter),
            }
        }
    }

    /// Reads a value between its quotes.
    fn value(&mut self) -> Result<String, Refused> {
        let quote = self.next()?;
        if !matches!(quote, '"' | '\'') {
            return refuse(format!("expected a quote, got {quote:?}"));
        }
        let mut value = String::new();
        loop {
            match self.next()? {
                end if end == quote => return Ok(value),
                _ if value.len() == LONGEST => return refuse("value too long".into()),
                letter => value.push(letter),
            }
        }
    }
}

//! The picture of the shoot-out: for each host the share of the requested GPUs that each planner
//! admits, over the load. Plain SVG, written by hand: lines and words need no library.

use super::stream::Variant;
use super::table::Sheet;
use std::fmt::Write;

/// Width of a host's panel, in pixels.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
/// Space around the lines of a panel.
const MARGIN: f64 = 46.0;
const COLUMNS: usize = 3;
/// Height of a line of the legend.
const LINE: f64 = 18.0;
/// Lines of the legend's entries side by side.
const LEGEND_COLUMNS: usize = 4;

/// One planner's curve on one host: load and share.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    /// Whether all its guests had full quality.
    full: bool,
}

/// The curves of a host, from the sheets of the plain variant.
fn curves(host: &str, sheets: &[Sheet]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for sheet in sheets.iter().filter(|s| s.host == host && s.variant == Variant::Plain) {
        for row in &sheet.rows {
            let at = curves.iter().position(|curve| curve.name == row.name).unwrap_or_else(|| {
                curves.push(Curve { name: row.name.clone(), points: Vec::new(), full: true });
                curves.len() - 1
            });
            curves[at].points.push((sheet.load, row.admitted()));
            curves[at].full &= row.full_quality();
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    curves
}

/// A colour for the planner of this index: hues far apart, ours black.
fn colour(place: usize) -> String {
    match place {
        0 => "#000000".into(),
        _ => format!("hsl({}, 70%, 42%)", place * 137 % 360),
    }
}

/// Text with what XML reserves written out.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The picture; empty without sheets of the plain variant.
#[allow(clippy::cast_precision_loss)]
pub fn svg(sheets: &[Sheet]) -> String {
    let mut hosts: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for sheet in sheets.iter().filter(|sheet| sheet.variant == Variant::Plain) {
        if !hosts.contains(&sheet.host.as_str()) {
            hosts.push(&sheet.host);
        }
        for row in &sheet.rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
    }
    if hosts.is_empty() {
        return String::new();
    }
    let rows = hosts.len().div_ceil(COLUMNS);
    let legend = (names.len().div_ceil(LEGEND_COLUMNS) + 2) as f64 * LINE;
    let (width, height) = (WIDTH * COLUMNS as f64, HEIGHT * rows as f64 + legend);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (at, host) in hosts.iter().enumerate() {
        let (x, y) = ((at % COLUMNS) as f64 * WIDTH, (at / COLUMNS) as f64 * HEIGHT);
        panel(&mut text, host, &curves(host, sheets), &names, (x, y));
    }
    let top = HEIGHT * rows as f64 + LINE;
    let _ = writeln!(
        text,
        "<text x=\"{MARGIN}\" y=\"{top}\">share of the asked GPUs let in, over the load; dashed: \
         some guests lack NVLink, local cores or memory, or share cores</text>"
    );
    for (place, name) in names.iter().enumerate() {
        let x = MARGIN + (place % LEGEND_COLUMNS) as f64 * width / LEGEND_COLUMNS as f64;
        let y = top + ((place / LEGEND_COLUMNS + 1) as f64) * LINE;
        let (colour, name) = (colour(place), escaped(name));
        let _ = writeln!(
            text,
            "<path d=\"M{x} {} h22\" stroke=\"{colour}\" stroke-width=\"3\"/>\
             <text x=\"{}\" y=\"{y}\">{name}</text>",
            y - 4.0,
            x + 28.0
        );
    }
    text.push_str("</svg>\n");
    text
}

/// One host's axes and curves, from the top left corner on.
fn panel(text: &mut String, host: &str, curves: &[Curve], names: &[&str], corner: (f64, f64)) {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let lowest = points().map(|(_, share)| *share).fold(1.0, f64::min);
    let bottom = (lowest * 10.0).floor() / 10.0;
    let first = points().map(|(load, _)| *load).fold(f64::INFINITY, f64::min);
    let last = points().map(|(load, _)| *load).fold(f64::NEG_INFINITY, f64::max);
    let (inner_x, inner_y) = (WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN);
    let x = |load: f64| {
        corner.0 + MARGIN + (load - first) / (last - first).max(f64::MIN_POSITIVE) * inner_x
    };
    let y = |share: f64| {
        let part = (share - bottom) / (1.0 - bottom).max(f64::MIN_POSITIVE);
        corner.1 + HEIGHT - MARGIN - part * inner_y
    };
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\">{}</text>",
        corner.0 + MARGIN,
        corner.1 + MARGIN - 12.0,
        escaped(host)
    );
    let steps = ((1.0 - bottom) * 10.0).round();
    let mut share = bottom;
    for _ in 0..=(0..).take_while(|step| f64::from(*step) < steps).count() {
        let _ = writeln!(
            text,
            "<path d=\"M{:.1} {:.1} h{inner_x:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{share:.1}</text>",
            x(first),
            y(share),
            x(first) - 5.0,
            y(share) + 4.0
        );
        share += 0.1;
    }
    let mut loads: Vec<f64> = points().map(|(load, _)| *load).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    for load in loads {
        let (x, y) = (x(load), y(bottom) + 16.0);
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{load:.2}</text>"
        );
    }
    // Ours last, so that it lies on top.
    for curve in curves.iter().rev() {
        let place = names.iter().position(|name| *name == curve.name).unwrap_or(0);
        let path: Vec<String> = curve
            .points
            .iter()
            .map(|&(load, share)| format!("{:.1} {:.1}", x(load), y(share)))
            .collect();
        let (colour, path) = (colour(place), path.join(" L"));
        let dash = if curve.full { "" } else { " stroke-dasharray=\"5 3\"" };
        let stroke = if place == 0 { 3.0 } else { 1.5 };
        let _ = writeln!(
            text,
            "<path d=\"M{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{stroke}\"\
             {dash}><title>{}</title></path>",
            escaped(&curve.name)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::Outcome;
    use super::*;

    /// A sheet of two planners that admitted this many.
    fn sheet(load: f64, gpus: u64) -> Sheet {
        let row = |name: &str, gpus| Outcome {
            name: name.into(),
            gpus,
            asked: 100,
            ..Outcome::default()
        };
        let rows = vec![row("ours", gpus), row("a<b", gpus / 2)];
        Sheet { host: "h&1".into(), load, variant: Variant::Plain, rows, limits: vec![] }
    }

    #[test]
    fn every_planner_has_a_line_and_a_name() {
        let text = svg(&[sheet(0.6, 90), sheet(0.8, 80)]);
        assert_eq!(text.matches("<title>").count(), 2);
        assert!(text.contains(">a&lt;b</text>") && text.contains("h&amp;1"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let opened = text.matches("<path").count();
        assert_eq!(
            opened,
            text.matches("/>\n").count() - 1
                + text.matches("</path>").count()
                + text.matches("/><text").count()
        );
    }

    #[test]
    fn without_curves_there_is_no_picture() {
        assert_eq!(svg(&[]), "");
        let other = Sheet { variant: Variant::Odd, ..sheet(0.6, 90) };
        assert_eq!(svg(&[other]), "");
    }
}

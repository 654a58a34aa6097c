/*
 * A driver of the virtual function of Intel's 82576 (8086:10ca, which QEMU's igb emulates): as much as it takes to ask who
 * has an address by ARP, and to get a frame of 1442 bytes back from there by an ICMP echo. Frames go out and come in by DMA, so
 * through the IOMMU of L1. One ring of each direction, no interrupts.
 *
 * Facts: datasheet of the 82576, the registers of a virtual function and the mailbox between it and the driver of the
 * physical function, which is the igb of L1 here.
 */
#include "probe.h"

enum {                                                      /* registers, in bytes from the start of BAR 0 */
    CTRL = 0x0000, MESSAGE = 0x0800, MAILBOX = 0x0c40,
    RDBAL = 0x2800, RDBAH = 0x2804, RDLEN = 0x2808, SRRCTL = 0x280c, RDT = 0x2818, RXDCTL = 0x2828,
    TDBAL = 0x3800, TDBAH = 0x3804, TDLEN = 0x3808, TDT = 0x3818, TXDCTL = 0x3828,
};
enum { CTRL_RST = 1 << 26, QUEUE_ENABLE = 1 << 25 };
enum { MB_REQ = 1, MB_ACK = 2, MB_VFU = 4, MB_PFSTS = 0x10, MB_RSTI = 0x40 };
enum { MSG_RESET = 1, MSG_ACK = 1u << 31 };
/* One advanced data descriptor for a whole frame: data, end of packet, insert the checksum of Ethernet, report status. */
enum { TX_FRAME = 0x2b300000, RX_ONE_BUFFER = 1 << 25 };
enum { SLOTS = 8, BUFFER = 2048, ECHO = 1400, SECONDS = 120 };

static volatile u32 rx[SLOTS][4] __attribute__((aligned(128))), tx[SLOTS][4] __attribute__((aligned(128)));
static u8 in[SLOTS][BUFFER] __attribute__((aligned(16))), out[BUFFER] __attribute__((aligned(16)));
static volatile u32 *regs;
static u32 rx_next, tx_next;
static u8 mac[6], own[4], peer[4], peer_mac[6];

static u32 reg(u32 r) { return regs[r / 4]; }
static void set(u32 r, u32 v) { regs[r / 4] = v; }

static void copy(u8 *to, const u8 *from, u32 n) { while (n--) *to++ = *from++; }
static int same(const u8 *a, const u8 *b, u32 n) { while (n--) if (*a++ != *b++) return 0; return 1; }
static void put_mac(const u8 *a) { for (int i = 0; i < 6; i++) { if (i) putc(':'); hex(a[i], 2); } }
static void put_ip(const u8 *a) { for (int i = 0; i < 4; i++) { if (i) putc('.'); dec(a[i]); } }

/* The clock's second, and whether it is over. The clock is read seldom, since each time costs a tenth of a millisecond or more here. */
static u8 second(void) { outb(0x70, 0); return inb(0x71); }
static u8 now;
static void wait_from_now(void) { now = second(); }
static int over(void) { for (volatile int i = 0; i < 2000; i++); return second() != now; }

/* Takes the mailbox, which the driver of the physical function may have. */
static int lock(void)
{
    for (int i = 0; i < 10000; i++) { set(MAILBOX, MB_VFU); if (reg(MAILBOX) & MB_VFU) return 1; }
    return 0;
}

/* Asks the physical function's driver to let this one send and receive, which tells its MAC address. */
static int reset(void)
{
    set(CTRL, CTRL_RST);
    for (int i = 0; i < SECONDS; i++) {
        if (!(reg(MAILBOX) & MB_RSTI) && lock()) { set(MESSAGE, MSG_RESET); set(MAILBOX, MB_REQ); }
        for (wait_from_now(); !over();) {
            if (!(reg(MAILBOX) & MB_PFSTS) || !lock()) continue;
            u32 said = reg(MESSAGE), low = reg(MESSAGE + 4), high = reg(MESSAGE + 8);
            set(MAILBOX, MB_ACK);
            if (said != (MSG_RESET | MSG_ACK)) continue;    /* of its own accord: that the link is up */
            for (int j = 0; j < 6; j++) mac[j] = (j < 4 ? low >> j * 8 : high >> (j - 4) * 8);
            return 1;
        }
    }
    return 0;
}

static void give(u32 slot) { rx[slot][0] = (u32)in[slot]; rx[slot][1] = rx[slot][2] = rx[slot][3] = 0; }

static void start(void)
{
    rx_next = tx_next = 0;
    for (u32 i = 0; i < SLOTS; i++) give(i);
    set(RDBAL, (u32)rx); set(RDBAH, 0); set(RDLEN, sizeof rx); set(SRRCTL, RX_ONE_BUFFER | BUFFER >> 10);
    set(RXDCTL, QUEUE_ENABLE); set(RDT, SLOTS - 1);
    set(TDBAL, (u32)tx); set(TDBAH, 0); set(TDLEN, sizeof tx);
    set(TXDCTL, QUEUE_ENABLE);
}

/* Sends the n bytes of `out`; whether the card says that it has. */
static int send(u32 n)
{
    volatile u32 *d = tx[tx_next];
    d[0] = (u32)out; d[1] = 0; d[2] = TX_FRAME | n; d[3] = n << 14;
    tx_next = (tx_next + 1) % SLOTS;
    __asm__ volatile("" ::: "memory");
    set(TDT, tx_next);
    for (wait_from_now(); !(d[3] & 1);) if (over()) return 0;
    return 1;
}

/* The next frame that came, none where there is none; it stays until `taken`. */
static u8 *came(u32 *n)
{
    if (!(rx[rx_next][2] & 1)) return 0;
    *n = rx[rx_next][3] & 0xffff;
    __asm__ volatile("" ::: "memory");
    return in[rx_next];
}
static void taken(void) { give(rx_next); set(RDT, rx_next); rx_next = (rx_next + 1) % SLOTS; }

/* Starts a frame of a type to a MAC address, the rest empty. */
static void head(const u8 *to, u16 type)
{
    for (u32 i = 0; i < BUFFER; i++) out[i] = 0;
    if (to) copy(out, to, 6); else for (u32 i = 0; i < 6; i++) out[i] = 0xff;
    copy(out + 6, mac, 6);
    out[12] = type >> 8; out[13] = type;
}
/* Writes the Internet checksum of n bytes to their place `at`. */
static void sum(u8 *p, u32 n, u32 at)
{
    u32 s = 0;
    for (u32 i = 0; i < n; i += 2) s += p[i] << 8 | p[i + 1];
    while (s >> 16) s = (s & 0xffff) + (s >> 16);
    p[at] = ~s >> 8; p[at + 1] = ~s;
}

static u32 arp(void)
{
    static const u8 question[8] = { 0, 1, 8, 0, 6, 4, 0, 1 };   /* Ethernet, IPv4, who has */
    head(0, 0x0806);
    copy(out + 14, question, 8); copy(out + 22, mac, 6); copy(out + 28, own, 4); copy(out + 38, peer, 4);
    return 60;
}
static int arp_answer(const u8 *p, u32 n)
{
    if (n < 42 || p[12] != 8 || p[13] != 6 || p[21] != 2 || !same(p + 28, peer, 4)) return 0;
    copy(peer_mac, p + 22, 6);
    return 1;
}
static u32 echo(void)
{
    u8 *ip = out + 14, *icmp = ip + 20;
    head(peer_mac, 0x0800);
    ip[0] = 0x45; ip[2] = (28 + ECHO) >> 8; ip[3] = (28 + ECHO) & 0xff; ip[8] = 64; ip[9] = 1;
    copy(ip + 12, own, 4); copy(ip + 16, peer, 4); sum(ip, 20, 10);
    icmp[0] = 8; icmp[5] = 7; icmp[7] = 1;
    for (u32 i = 0; i < ECHO; i++) icmp[8 + i] = i * 7 + (i >> 8);
    sum(icmp, 8 + ECHO, 2);
    return 42 + ECHO;
}
/* `out` is the question still. */
static int echo_answer(const u8 *p, u32 n)
{
    return n >= 42 + ECHO && p[12] == 8 && !p[13] && p[23] == 1 && p[34] == 0 && same(p + 26, peer, 4) && same(p + 6, peer_mac, 6)
        && same(p + 38, out + 38, 4 + ECHO);
}

/* Asks each second until an answer comes; says how often it asked. */
static int ask(u32 b, u32 d, u32 f, const char *what, u32 (*question)(void), int (*is_answer)(const u8 *, u32))
{
    for (u32 i = 1; i <= SECONDS; i++) {
        u32 n;
        u8 *p;
        if (!send(question())) { puts("L2 vf "); name(b, d, f); puts(" sends nothing\n"); return 0; }
        for (wait_from_now(); !over();) {
            while ((p = came(&n))) {
                int is = is_answer(p, n);
                taken();
                if (is) return 1;
            }
        }
        puts("L2 vf "); name(b, d, f); putc(' '); puts(what); putc(' '); put_ip(peer); puts(": no answer to "); dec(i); putc('\n');
    }
    return 0;
}

/* Reads address number n of "1.2.3.4,5.6.7.8 ..." into `peer`. */
static int address(const char *c, u32 n)
{
    u32 i = 0, v = 0;
    for (; n; c++) { if (!*c || *c == ' ') return 0; if (*c == ',') n--; }
    for (; i < 4; c++) {
        if (*c >= '0' && *c <= '9') { v = v * 10 + *c - '0'; continue; }
        peer[i++] = v; v = 0;
        if (*c != '.') break;
    }
    return i == 4;
}

/* The virtual function that is found as number n asks address number n of the list, as the address .100 + n there. */
void vf(u32 b, u32 d, u32 f, const char *asks)
{
    static u32 found;
    u64 size, at;
    if (!address(asks, found)) return;
    copy(own, peer, 3); own[3] = 100 + found++;
    decode(b, d, f, 0); at = bar(b, d, f, 0, &size); decode(b, d, f, 1);
    regs = map(at);
    puts("L2 vf "); name(b, d, f);
    if (!reset()) { puts(" has no answer from the driver of its physical function\n"); return; }
    puts(" mac "); put_mac(mac); puts(" asks "); put_ip(peer); puts(" as "); put_ip(own); putc('\n');
    start();
    if (!ask(b, d, f, "arp", arp, arp_answer)) return;
    puts("L2 vf "); name(b, d, f); puts(" arp "); put_ip(peer); puts(" is at "); put_mac(peer_mac); puts(" (DMA)\n");
    if (!ask(b, d, f, "echo", echo, echo_answer)) return;
    puts("L2 vf "); name(b, d, f); puts(" echo of "); dec(ECHO); puts(" bytes from "); put_ip(peer); puts(" (DMA)\n");
    set(RXDCTL, 0); set(TXDCTL, 0);                         /* nothing is written to memory any more */
}

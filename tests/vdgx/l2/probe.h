/* What probe.c has for drivers of devices: the console, PCI configuration space and memory. Needs no library. */
#include <stdint.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;

static inline void outb(u16 p, u8 v) { __asm__ volatile("outb %0,%1" :: "a"(v), "Nd"(p)); }
static inline u8 inb(u16 p) { u8 v; __asm__ volatile("inb %1,%0" : "=a"(v) : "Nd"(p)); return v; }

void putc(char c);
void puts(const char *s);
void hex(u32 v, int n);                                     /* n digits */
void dec(u32 v);
void name(u32 b, u32 d, u32 f);                             /* 03:00.0 */
volatile u32 *map(u64 a);                                   /* one address of 4 GiB and above at a time */
u64 bar(u32 b, u32 d, u32 f, int n, u64 *size);
void decode(u32 b, u32 d, u32 f, int on);

void vf(u32 b, u32 d, u32 f, const char *asks);             /* igbvf.c */

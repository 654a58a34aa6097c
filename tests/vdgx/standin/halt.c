// Preloaded into gpuvm: stops or kills it at the n-th record that it is about to make durable in a journal of its own, so that a
// script can do something between two of its steps.
//
// VDGX_HALT: number of the record, from 1, or how the record begins, the first such one. VDGX_SIGNAL: number of the signal (SIGSTOP). VDGX_LOG: file that gets
// a line for each record: its number and its first 60 bytes. VDGX_KEEP: no journal goes, as if the power was cut before its
// removal was on the disk. VDGX_CONFIG: `before` or `after` the first write to the configuration space of a PCI function, in place
// of a record. A record is halted before it is durable, so `{"begin":3}` is
// after the looks of step 3 and before the step itself, `{"done":3}` after step 3.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number, halt_at, halt_by = SIGSTOP, out = -1;
static const char *halt_as, *config_when;

__attribute__((constructor)) static void begin(void) {
  const char *at = getenv("VDGX_HALT"), *by = getenv("VDGX_SIGNAL"), *log = getenv("VDGX_LOG");
  halt_at = at ? atoi(at) : 0;
  if (at && !halt_at && *at) halt_as = at;
  if (by) halt_by = atoi(by);
  config_when = getenv("VDGX_CONFIG");
  if (log) out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  unsetenv("LD_PRELOAD"); // the programs that it runs are left alone
}

int unlink(const char *path) {
  int (*real)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
  return getenv("VDGX_KEEP") && strstr(path, "/gpuvm/journal/") ? 0 : real(path);
}

// Whether the path of an open file contains these words; false if it has none.
static int is_open(int fd, const char *first, const char *second) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return strstr(path, first) && strstr(path, second);
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
  typedef ssize_t function(int, const void *, size_t, off64_t);
  function *real = (function *)dlsym(RTLD_NEXT, "pwrite64");
  const char *when = config_when;
  if (!when || !is_open(fd, "/sys/", "/config")) return real(fd, bytes, size, at);
  config_when = NULL;
  if (!strcmp(when, "before")) raise(halt_by);
  ssize_t written = real(fd, bytes, size, at);
  if (!strcmp(when, "after")) raise(halt_by);
  return written;
}

int fdatasync(int fd) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  static char text[1 << 20]; // a plan holds definitions
  char line[160];
  ssize_t n;
  if (!is_open(fd, "/gpuvm/journal/", "")) return real(fd);
  number++;
  off_t end = lseek(fd, 0, SEEK_END), from = end > (off_t)sizeof text ? end - (off_t)sizeof text : 0;
  n = pread(fd, text, sizeof text - 1, from);
  int halts = number == halt_at;
  if (n > 0) {
    text[n - 1] = 0; // the last line ends with a line feed
    char *last = strrchr(text, '\n');
    last = last ? last + 1 : text;
    int size = snprintf(line, sizeof line, "%d %.60s\n", number, last);
    if (out >= 0 && write(out, line, size) < 0) perror("halt");
    if (halt_as && !strncmp(last, halt_as, strlen(halt_as))) halts = 1, halt_as = NULL;
  }
  if (halts) raise(halt_by);
  return real(fd);
}

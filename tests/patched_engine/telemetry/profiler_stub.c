/* A profiler that writes down what NVTX tells it: one line per event of the file NVTX_STUB_LOG, or
 * nothing where that is not set, to measure what a call costs without a tool's own work.
 *
 * NVTX loads the library named in NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2, which
 * puts its functions into the table of module CORE2. Numbers and layouts are NVTX 3's
 * (nvtxDetail/nvtxTypes.h and nvToolsExt.h).
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void (*function)(void);
typedef const void *(*get_export_table)(uint32_t id);
typedef struct {
  size_t size;
  int (*module_functions)(int module, function ***table, unsigned *count);
} callbacks;

enum { EXPORT_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { MARK = 1, PUSH = 4, POP = 5, NAME_CATEGORY = 8, REGISTER = 10, CREATE = 12, DESTROY = 14 };

typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const char *message; /* registered: what `register_string` returned */
} attributes;

static FILE *out;

static void line(const char *what, const char *domain, uint32_t category, const char *message) {
  if (!out) return;
  fprintf(out, "%s|%s|%ld|%u|%s\n", what, domain ? domain : "", (long)syscall(SYS_gettid), category,
          message ? message : "");
  fflush(out);
}

static void *create(const char *name) { return strdup(name); }
static void destroy(void *domain) { (void)domain; }
static void *register_string(void *domain, const char *text) {
  line("register", domain, 0, text);
  return strdup(text);
}
static void name_category(void *domain, uint32_t category, const char *name) {
  line("category", domain, category, name);
}
static void mark(void *domain, const attributes *a) { line("mark", domain, a->category, a->message); }
static int push(void *domain, const attributes *a) {
  line("push", domain, a->category, a->message);
  return 0;
}
static int pop(void *domain) {
  line("pop", domain, 0, "");
  return 0;
}

int InitializeInjectionNvtx2(get_export_table get) {
  const callbacks *given = get(EXPORT_CALLBACKS);
  function **table;
  unsigned count;
  const char *path = getenv("NVTX_STUB_LOG");
  if (!given || !given->module_functions(MODULE_CORE2, &table, &count) || count <= DESTROY) return 0;
  if (path && !(out = fopen(path, "a"))) return 0;
  *table[MARK] = (function)mark;
  *table[PUSH] = (function)push;
  *table[POP] = (function)pop;
  *table[NAME_CATEGORY] = (function)name_category;
  *table[REGISTER] = (function)register_string;
  *table[CREATE] = (function)create;
  *table[DESTROY] = (function)destroy;
  return 1;
}

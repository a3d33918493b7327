/* Preloaded into llama.cpp by bench/llama_cpp_speed.py: answers "not supported" when the program asks the kernel for
 * AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM), so that it takes its AVX-512 kernels. Its AMX path faults on
 * virtual machines that report AMX and do not really offer it. Every other system call goes through.
 *   cc -O2 -shared -fPIC refuse_amx.c -o refuse_amx.so -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

enum { kRequestPermission = 0x1023 };

long syscall(long number, ...) {
  long argument[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; ++i) argument[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && argument[0] == kRequestPermission) {
    errno = ENOTSUP;
    return -1;
  }
  static long (*next)(long, ...);
  if (!next) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return next(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

#include "eval/tasks/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <initializer_list>
#include <vector>

#ifdef __linux__
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

namespace kvant {
namespace {

using SandboxClock = std::chrono::steady_clock;

// The child sends one of these letters if the program cannot start.
constexpr char kNoFilter = 'f', kNoPython = 'p';
// The child sends the letter through this file, which closes when the program starts.
constexpr int kFailureFile = 3;

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#ifdef __x86_64__
constexpr unsigned kArchitecture = AUDIT_ARCH_X86_64;
#else
constexpr unsigned kArchitecture = AUDIT_ARCH_AARCH64;
#endif

// Lists the calls that fail with EPERM. An architecture may lack some of them.
constexpr int kRefusedCalls[] = {
#ifdef __x86_64__
    // arm64 has only the newer forms of these calls.
    __NR_fork,
    __NR_vfork,
    __NR_creat,
    __NR_unlink,
    __NR_rename,
    __NR_mkdir,
    __NR_rmdir,
    __NR_link,
    __NR_symlink,
    __NR_mknod,
    __NR_chmod,
    __NR_chown,
    __NR_lchown,
    __NR_utime,
    __NR_utimes,
    __NR_futimesat,
#endif
    // These calls change files or the file system.
    __NR_unlinkat,
    __NR_renameat2,
    __NR_mkdirat,
    __NR_linkat,
    __NR_symlinkat,
    __NR_mknodat,
    __NR_fchmod,
    __NR_fchmodat,
    __NR_fchown,
    __NR_fchownat,
    __NR_truncate,
    __NR_ftruncate,
    __NR_fallocate,
    __NR_utimensat,
    __NR_setxattr,
    __NR_lsetxattr,
    __NR_fsetxattr,
    __NR_removexattr,
    __NR_lremovexattr,
    __NR_fremovexattr,
    __NR_open_by_handle_at,
    __NR_memfd_create,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
#ifdef __NR_renameat
    __NR_renameat,
#endif
    // These calls use the network or talk with other processes.
    __NR_socket,
    __NR_socketpair,
    __NR_shmget,
    __NR_shmat,
    __NR_shmctl,
    __NR_msgget,
    __NR_msgctl,
    __NR_msgsnd,
    __NR_msgrcv,
    __NR_semget,
    __NR_semctl,
    __NR_semop,
    __NR_semtimedop,
    __NR_mq_open,
    __NR_mq_unlink,
    // These calls start threads, or control other processes.
    __NR_clone,
    __NR_kill,
    __NR_tkill,
    __NR_tgkill,
    __NR_rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_setpriority,
    __NR_ioprio_set,
    __NR_sched_setscheduler,
    __NR_sched_setparam,
    __NR_sched_setattr,
    __NR_sched_setaffinity,
    __NR_unshare,
    __NR_setns,
    __NR_kcmp,
#ifdef __NR_pidfd_open
    __NR_pidfd_open,
    __NR_pidfd_send_signal,
    __NR_pidfd_getfd,
#endif
#ifdef __NR_process_madvise
    __NR_process_madvise,
#endif
    // These calls reach into the kernel.
    __NR_bpf,
    __NR_perf_event_open,
    __NR_userfaultfd,
    __NR_add_key,
    __NR_request_key,
    __NR_keyctl,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_reboot,
    __NR_swapon,
    __NR_swapoff,
    __NR_acct,
    __NR_quotactl,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_clock_adjtime,
    __NR_adjtimex,
#ifdef __NR_iopl
    __NR_iopl,
    __NR_ioperm,
#endif
#ifdef __NR_kexec_file_load
    __NR_kexec_file_load,
#endif
#ifdef __NR_open_tree
    __NR_open_tree,
    __NR_move_mount,
    __NR_fsopen,
    __NR_fsconfig,
    __NR_fsmount,
    __NR_fspick,
#endif
#ifdef __NR_mount_setattr
    __NR_mount_setattr,
#endif
    __NR_sethostname,
    __NR_setdomainname,
#ifdef __NR_io_uring_setup
    // io_uring would do all of this past the filter.
    __NR_io_uring_setup,
    __NR_io_uring_enter,
    __NR_io_uring_register,
#endif
};

// SystemCallFilter is the program that the kernel runs before each system call of the sandbox.
class SystemCallFilter {
 public:
  SystemCallFilter() {
    load(offsetof(seccomp_data, arch));
    // Calls of another architecture, such as 32-bit calls, have other numbers.
    unless_equal(kArchitecture, SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#ifdef __x86_64__
    constexpr unsigned kOtherNumbers = 0x40000000;  // the numbers of the x32 interface
    add(BPF_JMP | BPF_JGE | BPF_K, kOtherNumbers, 0, 1);
    end(failure(EPERM));
#endif
    // Newer calls are not in the list. A program takes them for calls that the kernel does not have.
    constexpr unsigned kFirstUnknown = 450;
    add(BPF_JMP | BPF_JGE | BPF_K, kFirstUnknown, 0, 1);
    end(failure(ENOSYS));
    for (const int call : kRefusedCalls) if_call(call, failure(EPERM));
    // The C library falls back on older calls.
    if_call(__NR_clone3, failure(ENOSYS));
#ifdef __NR_openat2
    if_call(__NR_openat2, failure(ENOSYS));
#endif
    if_call(__NR_ioctl, failure(ENOTTY));
    constexpr unsigned kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
    if_argument(__NR_openat, 2, kWrites, EACCES);
#ifdef __NR_open
    if_argument(__NR_open, 1, kWrites, EACCES);
#endif
    // F_SETOWN, F_SETSIG and F_SETOWN_EX let a file send signals to other processes.
    if_argument_is(__NR_fcntl, 1, {8, 10, 15}, EPERM);
    // The first argument names a process. 0 is the program itself, which can only lower its limits.
    if_argument(__NR_prlimit64, 0, ~0U, EPERM);
    end(SECCOMP_RET_ALLOW);
    program_ = {static_cast<unsigned short>(code_.size()), code_.data()};
  }

  // Restricts the calling process for good. The function allocates nothing, so a forked child may call it.
  bool apply() const {
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program_) == 0;
  }

 private:
  static unsigned failure(int number) {
    return SECCOMP_RET_ERRNO | static_cast<unsigned>(number);
  }
  void add(int code, unsigned value, int if_true, int if_false) {
    code_.push_back({static_cast<unsigned short>(code), static_cast<unsigned char>(if_true),
                     static_cast<unsigned char>(if_false), value});
  }
  void load(std::size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset), 0, 0);
  }
  void end(unsigned verdict) {
    add(BPF_RET | BPF_K, verdict, 0, 0);
  }
  void unless_equal(unsigned value, unsigned verdict) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    end(verdict);
  }
  void if_call(int call, unsigned verdict) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1);
    end(verdict);
  }
  // The call fails if any of the bits is set in the lower half of an argument.
  void if_argument(int call, int argument, unsigned bits, int number) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 4);
    load(offsetof(seccomp_data, args) + sizeof(std::uint64_t) * argument);
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    end(failure(number));
    end(SECCOMP_RET_ALLOW);
  }

  // The call fails if the lower half of an argument is one of the values.
  void if_argument_is(int call, int argument, std::initializer_list<unsigned> values, int number) {
    int left = static_cast<int>(values.size());
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, left + 3);
    load(offsetof(seccomp_data, args) + sizeof(std::uint64_t) * argument);
    for (const unsigned value : values) add(BPF_JMP | BPF_JEQ | BPF_K, value, left--, 0);
    end(SECCOMP_RET_ALLOW);
    end(failure(number));
  }

  std::vector<sock_filter> code_;
  sock_fprog program_ = {};
};

#else

class SystemCallFilter {
 public:
  static bool apply() { return false; }
};

#endif

// FileEnd closes an end of a pipe.
class FileEnd {
 public:
  explicit FileEnd(int file) : file_(file) {}
  ~FileEnd() { close_now(); }
  FileEnd(const FileEnd&) = delete;
  FileEnd& operator=(const FileEnd&) = delete;
  void close_now() {
    if (file_ >= 0) close(file_);
    file_ = -1;
  }

 private:
  int file_;
};

void set_limit(int what, rlim_t soft, rlim_t hard) {
  const rlimit limit = {soft, hard};
  setrlimit(static_cast<decltype(RLIMIT_CPU)>(what), &limit);
}

// Closes the files from `first` on, among them the devices and models of this process.
void close_files(int first) {
#if defined(__linux__) && defined(SYS_close_range)
  if (syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0) return;
#endif
  const long most = sysconf(_SC_OPEN_MAX);
  for (long file = first; file < most; ++file) close(static_cast<int>(file));
}

[[noreturn]] void fail_to_start(char why) {
  (void)!write(kFailureFile, &why, 1);
  _exit(1);
}

// Becomes the program. The function runs between fork() and execve() of a process with threads, so the
// function calls nothing that allocates or locks.
[[noreturn]] void become_program(const SystemCallFilter& filter, const SandboxLimits& limits, int output,
                                 int failure, char* const* arguments, char* const* environment) {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  dup2(failure, kFailureFile);
  fcntl(kFailureFile, F_SETFD, FD_CLOEXEC);
  close_files(kFailureFile + 1);
  setsid();
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  const auto seconds = static_cast<rlim_t>(limits.cpu_seconds);
  const auto memory = static_cast<rlim_t>(limits.memory_bytes);
  set_limit(RLIMIT_CPU, seconds, seconds + 1);
  set_limit(RLIMIT_AS, memory, memory);
  set_limit(RLIMIT_FSIZE, 0, 0);
  set_limit(RLIMIT_CORE, 0, 0);
  set_limit(RLIMIT_NOFILE, 64, 64);
  if (chdir("/") != 0 || !filter.apply()) fail_to_start(kNoFilter);
  // execve() does not search PATH, so the function tries the usual places of Python.
  for (const char* python : {"/usr/local/bin/python3", "/usr/bin/python3", "/bin/python3"})
    execve(python, arguments, environment);
  fail_to_start(kNoPython);
}

// Reads the output until the program closes it. Returns false if the program must be stopped, because it
// wrote too much or `deadline` has passed.
bool read_output(int file, const SandboxLimits& limits, SandboxClock::time_point deadline, ProgramRun& run) {
  std::array<char, 4096> bytes;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SandboxClock::now()).count();
    pollfd waiting = {file, POLLIN, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      run.timed_out = true;
      return false;
    }
    const ssize_t n = read(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    run.output.append(bytes.data(), static_cast<std::size_t>(n));
    if (run.output.size() > limits.output_bytes) return false;
  }
}

// Waits for the end of the process. A program that has closed its output may still run until `deadline`.
int wait_for(pid_t process, bool stop, SandboxClock::time_point deadline, ProgramRun& run) {
  int status = 0;
  while (true) {
    if (!stop && SandboxClock::now() > deadline) run.timed_out = stop = true;
    if (stop) kill(process, SIGKILL);
    const pid_t ended = waitpid(process, &status, stop ? 0 : WNOHANG);
    if (ended == process) return status;
    if (ended < 0 && errno != EINTR) return -1;
    if (ended == 0) usleep(1000);
  }
}

}  // namespace

Result<ProgramRun> run_sandboxed_python(const std::string& source, const SandboxLimits& limits) {
  if (source.size() > kMostProgramBytes) {
    return error("the program of {} bytes is longer than the {} bytes that a command line may have",
                 source.size(), kMostProgramBytes);
  }
  const SystemCallFilter filter;
  const std::string words[] = {"python3", "-s", "-B", "-c", source};
  const std::string settings[] = {"LANG=C.UTF-8", "PYTHONHASHSEED=0", "HOME=/", "PATH=/usr/bin:/bin"};
  std::vector<char*> arguments, environment;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& setting : settings) environment.push_back(const_cast<char*>(setting.c_str()));
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  int output[2], failure[2];
  if (pipe2(output, O_CLOEXEC) != 0) return error("a program cannot run: {}", std::strerror(errno));
  const FileEnd output_end(output[0]);
  FileEnd output_start(output[1]);
  if (pipe2(failure, O_CLOEXEC) != 0) return error("a program cannot run: {}", std::strerror(errno));
  const FileEnd failure_end(failure[0]);
  FileEnd failure_start(failure[1]);
  const auto deadline = SandboxClock::now() + std::chrono::seconds(limits.wall_seconds);
  const pid_t process = fork();
  if (process == 0)
    become_program(filter, limits, output[1], failure[1], arguments.data(), environment.data());
  output_start.close_now();
  failure_start.close_now();
  if (process < 0) return error("a program cannot run: {}", std::strerror(errno));
  ProgramRun run;
  const bool stop = !read_output(output[0], limits, deadline, run);
  const int status = wait_for(process, stop, deadline, run);
  char why = 0;
  if (read(failure[0], &why, 1) == 1) {
    if (why == kNoPython) return error("programs need python3 in /usr/local/bin or /usr/bin: install it");
    return error("this system cannot restrict a program's system calls (seccomp), so no program runs");
  }
  run.succeeded = !stop && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  run.timed_out = run.timed_out || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU);
  return run;
}

}  // namespace kvant

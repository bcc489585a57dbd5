//go:build amd64 || arm64

package privileges

import (
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Filter lets the process make the system calls only that the Go runtime, the drivers and servers
// make, and sets no_new_privs: no program is executed, no other process touched, no memory made
// executable, nothing mounted, no setting of the kernel changed, and sockets are of the families
// that a slice needs (unix, IP, netlink, packet). Any other call fails with EPERM (clone3 with
// ENOSYS, by which callers fall back to clone).
func Filter() error {
	program, err := filterProgram()
	if err != nil {
		return fmt.Errorf("assemble the filter of system calls: %w", err)
	}
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if err := installFilter(program); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// Offsets in struct seccomp_data (linux/seccomp.h). Both processors are little-endian: the low half
// of an argument comes first.
const (
	callNumber = 0
	callArch   = 4
	callArgs   = 16
)

func loadArgument(n uint32) bpf.LoadAbsolute {
	return bpf.LoadAbsolute{Off: callArgs + 8*n,
		Size: 4}
}

// What a program returns.
const (
	allowed = unix.SECCOMP_RET_ALLOW
	refused = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	unknown = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	killed  = unix.SECCOMP_RET_KILL_PROCESS
)

// filterProgram returns the filter. The kernel keeps what it says of calls whose arguments it does
// not look at, so its length costs nothing then.
func filterProgram() ([]bpf.RawInstruction, error) {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: callArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: killed},
		bpf.LoadAbsolute{Off: callNumber, Size: 4},
	}
	for _, number := range append(commonCalls(), archCalls()...) {
		p = append(p, onCall(number, bpf.RetConstant{Val: allowed})...)
	}
	p = append(p, onCall(unix.SYS_CLONE3, bpf.RetConstant{Val: unknown})...)
	// A thread, never a process.
	p = append(p, onCall(unix.SYS_CLONE, loadArgument(0),
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLONE_THREAD, SkipFalse: 1},
		bpf.RetConstant{Val: allowed}, bpf.RetConstant{Val: refused})...)
	for _, number := range []uint32{unix.SYS_MMAP, unix.SYS_MPROTECT} {
		p = append(p, onCall(number, loadArgument(2),
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.PROT_EXEC, SkipTrue: 1},
			bpf.RetConstant{Val: allowed}, bpf.RetConstant{Val: refused})...)
	}
	p = append(p, onCall(unix.SYS_SOCKET, oneOf(0, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6,
		unix.AF_NETLINK, unix.AF_PACKET)...)...)
	// Elements of maps and links of programs that there are; no map, no program.
	p = append(p, onCall(unix.SYS_BPF, oneOf(0, unix.BPF_MAP_LOOKUP_ELEM, unix.BPF_MAP_UPDATE_ELEM,
		unix.BPF_MAP_DELETE_ELEM, unix.BPF_LINK_CREATE)...)...)
	// The runtime names its memory; the rest of prctl is for settings of the process.
	p = append(p, onCall(unix.SYS_PRCTL, oneOf(0, unix.PR_SET_VMA)...)...)
	// The software NIC copies to and from the process's own memory, which it knows by addresses.
	for _, number := range []uint32{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV} {
		p = append(p, onCall(number, oneOf(0, uint32(os.Getpid()))...)...)
	}
	p = append(p, bpf.RetConstant{Val: refused})
	return bpf.Assemble(p)
}

// onCall runs the instructions, which end in a return, for this number of a call.
func onCall(number uint32, then ...bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: number, SkipFalse: uint8(len(then))}}, then...)
}

// oneOf allows the call if its argument is one of the values, and else refuses it.
func oneOf(n uint32, values ...uint32) []bpf.Instruction {
	p := []bpf.Instruction{loadArgument(n)}
	for _, v := range values {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1},
			bpf.RetConstant{Val: allowed})
	}
	return append(p, bpf.RetConstant{Val: refused})
}

// commonCalls returns the calls that are allowed whatever their arguments.
func commonCalls() []uint32 {
	return []uint32{
		// memory, threads, time, signals: the Go runtime
		unix.SYS_BRK, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MINCORE,
		unix.SYS_MLOCK, unix.SYS_MUNLOCK, unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ,
		unix.SYS_MEMBARRIER, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_SCHED_SETAFFINITY, unix.SYS_SET_TID_ADDRESS, unix.SYS_GETCPU, unix.SYS_GETRANDOM,
		unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP,
		unix.SYS_NANOSLEEP, unix.SYS_GETTIMEOFDAY, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME,
		unix.SYS_TIMER_DELETE, unix.SYS_SETITIMER, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN,
		unix.SYS_SIGALTSTACK, unix.SYS_TGKILL, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
		// facts of the process
		unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETPPID, unix.SYS_GETUID, unix.SYS_GETEUID,
		unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRUSAGE, unix.SYS_PRLIMIT64,
		unix.SYS_UNAME, unix.SYS_SYSINFO, unix.SYS_CAPGET, unix.SYS_GETCWD, unix.SYS_UMASK,
		// files
		unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_READ,
		unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64,
		unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_STATFS,
		unix.SYS_FSTATFS, unix.SYS_GETDENTS64, unix.SYS_READLINKAT, unix.SYS_FACCESSAT,
		unix.SYS_FACCESSAT2, unix.SYS_FCNTL, unix.SYS_FTRUNCATE, unix.SYS_FSYNC, unix.SYS_FLOCK,
		unix.SYS_FADVISE64, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2,
		unix.SYS_FCHMODAT, unix.SYS_FCHMOD, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE,
		unix.SYS_SPLICE, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_IOCTL,
		unix.SYS_MEMFD_CREATE,
		// waiting
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2,
		unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_EVENTFD2, unix.SYS_TIMERFD_CREATE,
		unix.SYS_TIMERFD_SETTIME, unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH,
		unix.SYS_INOTIFY_RM_WATCH,
		// sockets, once made
		unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT,
		unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SOCKETPAIR, unix.SYS_SETSOCKOPT,
		unix.SYS_GETSOCKOPT, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG,
		unix.SYS_RECVMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMMSG, unix.SYS_SHUTDOWN,
	}
}

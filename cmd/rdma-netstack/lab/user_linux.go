package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// insideEnv tells a process that RunAsNamespaceRoot started it.
const insideEnv = "RDMA_NETSTACK_NAMESPACE_ROOT"

// CanMakeNets returns nil when this process may call New, and otherwise why not.
func CanMakeNets() error {
	return onThreadWait(func() error { return unix.Unshare(unix.CLONE_NEWNET) })
}

// ErrNoUserNamespaces means that on this machine only root may make namespaces.
var ErrNoUserNamespaces = errors.New("user namespaces are not to be had")

// RunAsNamespaceRoot runs this program again, with the same arguments, as root of a user and
// network namespace made for it, and returns its exit code. Signals that request a program's end
// are passed on; if this process dies, so does the child. The child has the first of files by
// Given. Where the machine refuses, the error is ErrNoUserNamespaces with the setting that causes
// it.
func RunAsNamespaceRoot(args []string, stdout, stderr io.Writer,
	files ...*os.File) (code int, err error) {
	if os.Getenv(insideEnv) != "" {
		return 0, fmt.Errorf(
			"%w: this process is root of its user namespace and still may not make a network "+
				"namespace (%s)",
			ErrNoUserNamespaces,
			refusal("/proc/sys"),
		)
	}
	cmd := exec.Command(
		"/proc/self/exe",
		args...) // also where the program's own path is not accessible
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d files", insideEnv, len(files)))
	cmd.ExtraFiles = files
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	cmd.SysProcAttr = namespaceRoot()
	return runPassingSignals(cmd)
}

// Given returns the file that RunAsNamespaceRoot was called with; nil if there is none. The caller
// closes it, and calls Given once.
func Given() *os.File {
	if files := os.Getenv(insideEnv); files == "" || files == "0 files" {
		return nil
	}
	const firstExtra = 3 // see exec.Cmd.ExtraFiles
	unix.CloseOnExec(firstExtra)
	return os.NewFile(firstExtra, "given")
}

func namespaceRoot() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
		Setpgid:     true, // a Ctrl-C in the terminal reaches the child once, from here
	}
}

func runPassingSignals(cmd *exec.Cmd) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)

	runtime.LockOSThread() // the child dies with the thread that started it
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("%w: %w (%s)", ErrNoUserNamespaces, err, refusal("/proc/sys"))
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			cmd.Process.Signal(sig)
		case err := <-done:
			return exitCode(cmd, err)
		}
	}
}

func exitCode(cmd *exec.Cmd, err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	}
	return 0, fmt.Errorf("run %s as root of a user namespace: %w", cmd.Path, err)
}

// refusal names the setting under root (/proc/sys) that keeps ordinary users from making
// namespaces, and how to change it.
func refusal(root string) string {
	for _, s := range []struct{ file, refuses, hint string }{
		{"kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
		{"user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"},
		{"user/max_net_namespaces", "0", "sysctl user.max_net_namespaces=10000"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1",
			"sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		value, err := os.ReadFile(root + "/" + s.file)
		if err == nil && strings.TrimSpace(string(value)) == s.refuses {
			return "run as root, or let users make namespaces: " + s.hint
		}
	}
	return "run as root; in a container, --cap-add SYS_ADMIN,NET_ADMIN,NET_RAW or a seccomp " +
		"profile that allows unshare"
}

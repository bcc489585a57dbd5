package need

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inNetNS runs f in a new network namespace, on a thread that ends with it.
func inNetNS(f func() error) error {
	result := make(chan error, 1)
	offMainThread(func() {
		runtime.LockOSThread() // never unlocked: the thread is not to be used again
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("make a network namespace: %w (run as root)", err)
			return
		}
		result <- f()
	})
	return <-result
}

// offMainThread runs f in a goroutine, never on the process's first thread: that thread cannot end,
// and other processes see its namespaces as those of the process.
func offMainThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		elsewhere := make(chan bool)
		go func() {
			runtime.LockOSThread() // f would, but too late
			close(elsewhere)
			f()
		}()
		<-elsewhere // this goroutine occupies the first thread until then
		runtime.UnlockOSThread()
	}()
}

func probeNetNS() error { return inNetNS(func() error { return nil }) }

func probeTUN() error { return inNetNS(makeTAP) }

func makeTAP() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	ifr, err := unix.NewIfreq("need%d")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("make a TAP interface: %w", err)
	}
	return nil
}

func probeUserNS() error {
	self, err := lookPath("true")
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf(
			"make a user namespace: %w (sysctl kernel.unprivileged_userns_clone, "+
				"user.max_user_namespaces)", err)
	}
	return nil
}

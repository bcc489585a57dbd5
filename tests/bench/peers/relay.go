package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// relay makes a TAP in this namespace and one in the namespace of that path, and carries frames
// between them: the cost for a kernel stack of a cable that is a process, as ours is.
func relay(path string, c cable) error {
	here, err := c.open()
	if err != nil {
		return err
	}
	there := make(chan int, 1)
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends in its namespace
		fd, err := tapAt(path, c.open)
		there <- fd
		errs <- err
	}()
	other, err := <-there, <-errs
	if err != nil {
		return err
	}
	go c.carry(here, func(frame []byte) { toServer(other, frame) })
	go c.carry(other, func(frame []byte) { toClient(here, frame) })
	return nil
}

func tapAt(path string, open func() (int, error)) (int, error) {
	ns, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("enter %s: %w", path, err)
	}
	return open()
}

// Offloads of a TAP (include/uapi/linux/if_tun.h): checksum, TSO for IPv4 and IPv6, ECN.
const tunOffloads = 1 | 2 | 4 | 8

// vnetTAP makes a TAP whose frames have a virtio-net header, so that super-segments pass.
func vnetTAP() (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(port)
	if err != nil {
		return 0, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	return fd, errors.Join(unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr),
		unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunOffloads))
}

// carry copies frames until an interface disappears. Its reads block: it needs no poller.
func carry(from int, to func(frame []byte)) {
	buf := make([]byte, 68<<10)
	for {
		n, err := unix.Read(from, buf)
		if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EINTR) &&
			!errors.Is(err, unix.EAGAIN) {
			return
		}
		if n > 0 {
			to(buf[:n])
		}
	}
}

// relayServer is the function in which the server's kernel receives a frame: the write continues
// into its TCP, up to the socket.
const relayServer = "main.toServer"

func toServer(fd int, frame []byte) {
	_, _ = unix.Write(fd, frame) // a full queue loses frames, as a cable does
}

func toClient(fd int, frame []byte) { _, _ = unix.Write(fd, frame) }

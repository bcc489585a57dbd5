package stack

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// addressLocks keep other processes of this machine from the MAC address and the addresses of a
// stack on packet sockets. What one packet socket sends does not come to another one, so two such
// stacks on one netdev do not hear each other's probes.
//
// A lock is an abstract unix socket (unix(7)) of the network namespace, named after the netdev and
// the address. It goes with its process, however that ends, and no child inherits it. A stack that
// takes a predecessor's place waits for each lock until the other process ends.
type addressLocks struct {
	mu     sync.Mutex
	held   []io.Closer // guarded by mu
	closed bool        // guarded by mu
}

// lockPrefix begins the names of all locks.
const lockPrefix = "@rdma-netstack/address/"

// lockAddresses takes the locks of the stack's MAC address and of Config.Addresses. The error is
// ErrDuplicateAddress if another process has one.
func (s *Stack) lockAddresses() error {
	port, ok := s.packets.(*packet.Port)
	if !ok || s.host != nil || runtime.GOOS != "linux" {
		return nil
	}
	ifi, err := net.InterfaceByName(port.Name())
	if err != nil {
		return fmt.Errorf("find %s: %w", port.Name(), err)
	}
	for _, address := range lockNames(port.MAC(), s.cfg.Addresses) {
		name := fmt.Sprintf("%s%d.%d/%s", lockPrefix, ifi.Index, port.VLAN(), address)
		err := s.locks.take(name)
		switch {
		case err == nil:
		case !errors.Is(err, syscall.EADDRINUSE):
			s.log.Warn("two processes with one address would not be noticed: no lock for it",
				"interface", port.Name(), "address", address, "error", err)
		case s.cfg.Predecessor != nil:
			s.background.Go(func() {
				if err := s.locks.await(name); err != nil {
					s.log.Warn("no lock of an address after the predecessor", "address", address,
						"error", err)
				}
			})
		default:
			return fmt.Errorf("%s already has %s on %s: end it, or give this one another address: "+
				"%w", holder(name), address, port.Name(), ErrDuplicateAddress)
		}
	}
	return nil
}

// lockNames returns what is locked.
func lockNames(mac net.HardwareAddr, addresses []netip.Prefix) []string {
	names := []string{mac.String()}
	for _, p := range addresses {
		names = append(names, p.Addr().String())
	}
	return names
}

// take binds the socket of a lock.
func (l *addressLocks) take(name string) error {
	lock, err := net.Listen("unix", name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return lock.Close()
	}
	l.held = append(l.held, lock)
	return nil
}

// await takes a lock once its holder has ended, or gives up when l is closed. The holder accepts no
// connection, so one to it ends with the lock.
func (l *addressLocks) await(name string) error {
	for {
		c, err := net.Dial("unix", name)
		if err != nil {
			if err = l.take(name); errors.Is(err, syscall.EADDRINUSE) {
				continue // somebody was faster
			}
			return err
		}
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			c.Close()
			return nil
		}
		l.held = append(l.held, c)
		l.mu.Unlock()
		_, _ = c.Read(make([]byte, 1)) // it ends with the connection
		c.Close()
	}
}

// close gives all locks up.
func (l *addressLocks) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.held {
		c.Close()
	}
	l.held = nil
}

// holder describes the process that has a lock.
func holder(name string) string {
	const unknown = "another process of this machine"
	c, err := net.Dial("unix", name)
	if err != nil {
		return unknown
	}
	defer c.Close()
	pid := peerPID(c.(*net.UnixConn))
	switch pid {
	case 0:
		return unknown
	case os.Getpid():
		return "another stack of this process"
	}
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(fmt.Sprintf("process %d %s", pid, command))
}

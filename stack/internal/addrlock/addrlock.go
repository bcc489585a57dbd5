// Package addrlock has locks of addresses among the processes of a machine.
package addrlock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
)

// Locks keep other processes of this machine from the MAC address and the addresses of a stack on
// packet sockets. What one packet socket sends does not come to another one, so two such stacks on
// one netdev do not hear each other's probes. The zero value holds none. Methods may be called from
// any goroutine.
//
// A lock is an abstract unix socket (unix(7)) of the network namespace, named after the netdev and
// the address. It goes with its process, however that ends, and no child inherits it. A stack that
// takes a predecessor's place waits for each lock until the other process ends.
type Locks struct {
	mu     sync.Mutex
	held   []io.Closer // guarded by mu
	closed bool        // guarded by mu
}

// Name returns the name of the lock of an address, of IP or Ethernet, on a netdev and in a VLAN.
func Name(netdev int, vlan uint16, address string) string {
	return fmt.Sprintf("@rdma-netstack/address/%d.%d/%s", netdev, vlan, address)
}

// Take takes a lock. The error is EADDRINUSE if it is held.
func (l *Locks) Take(name string) error {
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

// Await takes a lock once its holder has ended, or gives up when l is closed. The holder accepts no
// connection, so one to it ends with the lock.
func (l *Locks) Await(name string) error {
	for {
		c, err := net.Dial("unix", name)
		if err != nil {
			if err = l.Take(name); errors.Is(err, syscall.EADDRINUSE) {
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

// Close gives all locks up.
func (l *Locks) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, c := range l.held {
		c.Close()
	}
	l.held = nil
}

// Holder describes the process that has a lock.
func Holder(name string) string {
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

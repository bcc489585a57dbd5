package handover

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Port names a port whose socket goes with the message.
type Port struct {
	UDP bool           `json:"udp"`
	At  netip.AddrPort `json:"at"` // without a zone
}

// portsPerMessage says how many descriptors a message has at most; the kernel takes 253
// (SCM_MAX_FD in linux include/net/scm.h).
const portsPerMessage = 200

// Inherited holds the sockets of the process before that no port has yet.
type Inherited struct {
	mu  sync.Mutex
	fds map[Port]int
}

// Take returns the descriptor for a port, which is the caller's.
func (i *Inherited) Take(k Port) (fd int, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	fd, ok = i.fds[k]
	delete(i.fds, k)
	return fd, ok
}

// add reads a message of ports with its descriptors.
func (i *Inherited) add(message []byte, fds []int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ports []Port
	err := json.Unmarshal(message, &ports)
	if err == nil && len(ports) != len(fds) {
		err = errors.New("there is not one descriptor for each port")
	}
	if err != nil {
		closeFDs(fds)
		return err
	}
	if i.fds == nil {
		i.fds = map[Port]int{}
	}
	for n, p := range ports {
		i.fds[p] = fds[n]
	}
	return nil
}

// close closes those that are left.
func (i *Inherited) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, fd := range i.fds {
		unix.Close(fd)
	}
	clear(i.fds)
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// sendPorts sends a newcomer duplicates of the sockets of ports.
func (p *peer) sendPorts(of Ports) error {
	ports, fds, err := of.Duplicates()
	defer closeFDs(fds)
	if err != nil {
		return err
	}
	for i := 0; i < len(ports); i += portsPerMessage {
		end := min(i+portsPerMessage, len(ports))
		if err := p.sendWith(msgPorts, ports[i:end], fds[i:end]); err != nil {
			return err
		}
	}
	return nil
}

// parseRights returns the descriptors that came with a message.
func parseRights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		more, err := unix.ParseUnixRights(&m)
		if err != nil {
			closeFDs(fds)
			return nil, err
		}
		fds = slices.Concat(fds, more)
	}
	return fds, nil
}

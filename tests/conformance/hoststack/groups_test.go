//go:build linux

package hoststack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// grouped has a UDP socket's operations on groups: methods of [stack.UDPConn], and on the kernel's
// sockets those of golang.org/x/net.
type grouped interface {
	JoinGroup(ifi *net.Interface, group net.Addr) error
	LeaveGroup(ifi *net.Interface, group net.Addr) error
	SetTTL(int) error
	SetMulticastTTL(int) error
	SetMulticastLoopback(bool) error
}

var _ grouped = (*stack.UDPConn)(nil)

// groups returns the operations of p on groups.
func groups(p net.PacketConn) grouped {
	if c, ok := p.(*net.UDPConn); ok {
		return kernelGroups{ipv4.NewPacketConn(c), ipv6.NewPacketConn(c),
			c.LocalAddr().(*net.UDPAddr).IP.To4() == nil}
	}
	return p.(*stack.UDPConn)
}

// kernelGroups calls one of the two packages of golang.org/x/net: the group's IP version selects
// it, or the socket's.
type kernelGroups struct {
	v4  *ipv4.PacketConn
	v6  *ipv6.PacketConn
	is6 bool
}

func (k kernelGroups) JoinGroup(ifi *net.Interface, group net.Addr) error {
	if group.(*net.UDPAddr).IP.To4() != nil {
		return k.v4.JoinGroup(ifi, group)
	}
	return k.v6.JoinGroup(ifi, group)
}

func (k kernelGroups) LeaveGroup(ifi *net.Interface, group net.Addr) error {
	if group.(*net.UDPAddr).IP.To4() != nil {
		return k.v4.LeaveGroup(ifi, group)
	}
	return k.v6.LeaveGroup(ifi, group)
}

func (k kernelGroups) SetTTL(ttl int) error {
	if k.is6 {
		return errors.Join(k.v6.SetHopLimit(ttl), k.v4.SetTTL(ttl))
	}
	return k.v4.SetTTL(ttl)
}

func (k kernelGroups) SetMulticastTTL(ttl int) error {
	if k.is6 {
		return errors.Join(k.v6.SetMulticastHopLimit(ttl), k.v4.SetMulticastTTL(ttl))
	}
	return k.v4.SetMulticastTTL(ttl)
}

func (k kernelGroups) SetMulticastLoopback(on bool) error {
	if k.is6 {
		return errors.Join(k.v6.SetMulticastLoopback(on), k.v4.SetMulticastLoopback(on))
	}
	return k.v4.SetMulticastLoopback(on)
}

// onCable is the frames that the server has sent to groups, and short frames.
type onCable struct {
	mu     sync.Mutex
	frames [][]byte // guarded by mu
	more   chan struct{}
}

func newOnCable() *onCable { return &onCable{more: make(chan struct{}, 1)} }

// tap is netpair.Faults.Tap.
func (o *onCable) tap(end int, frame []byte) (drop bool) {
	if end == 0 && (frame[0]&1 != 0 || len(frame) < 128) {
		o.mu.Lock()
		o.frames = append(o.frames, bytes.Clone(frame))
		o.mu.Unlock()
		select {
		case o.more <- struct{}{}:
		default:
		}
	}
	return false
}

// listen records the frames that arrive at the other end of a kernel's cable.
func (o *onCable) listen(t *testing.T, other *lab.Net, ifname string) {
	t.Helper()
	var port *lab.Port
	if err := other.Do(func() (err error) {
		port, err = lab.OpenPort(ifname)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 1<<16); ; {
			f, err := port.Recv(buf, time.Time{})
			if err != nil {
				return
			}
			o.tap(0, f)
		}
	})
	t.Cleanup(func() {
		port.Close()
		reader.Wait()
	})
}

// find waits for a frame for which f returns a non-empty string, and returns that string.
func (r *run) find(what string, f func(packet []byte) string) string {
	r.Helper()
	for late := time.After(patience); ; {
		r.sent.mu.Lock()
		frames := r.sent.frames
		r.sent.mu.Unlock()
		for _, frame := range frames {
			if s := f(unpadded(frame[14:])); s != "" {
				return s
			}
		}
		select {
		case <-r.sent.more:
		case <-late:
			r.Fatalf("%s: %s was not sent", r.world.name, what)
		}
	}
}

// unpadded is a packet without what a card adds to the shortest frames.
func unpadded(packet []byte) []byte {
	size := len(packet)
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		size = int(binary.BigEndian.Uint16(packet[2:]))
	case len(packet) >= 40 && packet[0]>>4 == 6:
		size = 40 + int(binary.BigEndian.Uint16(packet[4:]))
	}
	return packet[:min(size, len(packet))]
}

// report waits for a report about a group whose record is of that type (RFC 3376 section 4.2.12),
// and describes it: time to live, destination, router alert, the record.
func (r *run) report(group netip.Addr, record byte) string {
	return r.find(fmt.Sprint("record ", record, " about ", group), func(p []byte) string {
		var ttl byte
		var to netip.Addr
		var alert, message []byte
		switch {
		case p[0]>>4 == 4 && p[9] == 2:
			ttl, to, alert, message = p[8], netip.AddrFrom4([4]byte(p[16:])), p[20:24], p[24:]
		case p[0]>>4 == 6 && p[6] == 0:
			ttl, to, alert, message = p[7], netip.AddrFrom16([16]byte(p[24:])), p[42:46], p[48:]
		default:
			return ""
		}
		at := 4 + len(group.AsSlice())
		for records, n := message[8:], message[7]; n > 0 && len(records) >= at; n-- {
			if records[0] == record && bytes.Equal(records[4:at], group.AsSlice()) {
				return fmt.Sprintf("type %d, TTL %d to %v, options %x, record %x", message[0],
					ttl, to, alert, records[:at])
			}
			records = records[at:] // no socket here requests sources
		}
		return ""
	})
}

// datagram waits for a datagram with this payload and returns its time to live and its source and
// destination addresses. Which of the server's two addresses is the source does not matter.
func (r *run) datagram(payload string) string {
	from := func(ip []byte) string {
		return strings.Replace(r.plain(net.IP(ip).String()), "ALIAS4",
			"HOST4", 1)
	}
	return r.find("datagram "+payload, func(p []byte) string {
		if !bytes.HasSuffix(p, []byte(payload)) {
			return ""
		}
		if p[0]>>4 == 4 {
			return fmt.Sprintf("TTL %d from %s to %v", p[8], from(p[12:16]), net.IP(p[16:20]))
		}
		return fmt.Sprintf("hop limit %d from %s to %v", p[7], from(p[8:24]), net.IP(p[24:40]))
	})
}

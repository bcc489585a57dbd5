package stack

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/stack/packets"
)

// askingWire answers ARP as a host at the other end of a wire, 192.0.2.2, which asks with what it
// is given.
type askingWire struct {
	recv    func([]frame.Frame)
	left    atomic.Int32  // answers that are still to come
	settled chan struct{} // told when the last has come
}

var askingMAC = []byte{2, 0, 0, 0, 0, 0xaa}

func (w *askingWire) Start(recv func([]frame.Frame)) error { w.recv = recv; return nil }
func (*askingWire) Offloads() frame.Offload                { return 0 }
func (*askingWire) Close() error                           { return nil }

// Send answers requests for a MAC, and counts datagrams.
func (w *askingWire) Send(frames []frame.Frame) (int, error) {
	for _, f := range frames {
		b := f.Data
		switch binary.BigEndian.Uint16(b[12:]) {
		case 0x806:
			if b[21] != 1 { // an answer
				continue
			}
			answer := append([]byte(nil), b...)
			copy(answer, b[6:12])
			copy(answer[6:], askingMAC)
			answer[21] = 2
			copy(answer[22:28], askingMAC)
			copy(answer[28:32], b[38:42])
			copy(answer[32:42], b[22:32])
			go w.recv([]frame.Frame{{Data: answer}})
		case 0x800:
			if b[23] == 17 && w.left.Add(-1) == 0 {
				w.settled <- struct{}{}
			}
		}
	}
	return len(frames), nil
}

// question returns a frame with a datagram of n bytes of payload to port 7 of 192.0.2.1.
func (w *askingWire) question(to net.HardwareAddr, port uint16, n int) frame.Frame {
	b := make([]byte, 14+20+8+n)
	copy(b, to)
	copy(b[6:], askingMAC)
	copy(b[12:], []byte{8, 0, 0x45, 0})
	ip, udp := b[14:], b[34:]
	binary.BigEndian.PutUint16(ip[2:], uint16(28+n))
	copy(ip[6:], []byte{0x40, 0, 64, 17})
	copy(ip[12:], []byte{192, 0, 2, 2, 192, 0, 2, 1})
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(udp, port)
	binary.BigEndian.PutUint16(udp[2:], 7)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+n))
	return frame.Frame{Data: b}
}

// BenchmarkPacketEcho sends batches of datagrams of 64 bytes back by a handler, on the software
// NIC. What of its instructions is not the model's (package simnic) is what a card would leave:
// make instructions PKG=./stack BENCH='BenchmarkPacketEcho$/batch=32'.
func BenchmarkPacketEcho(b *testing.B) {
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			w := &askingWire{settled: make(chan struct{}, 1)}
			nic, err := simnic.New(simnic.Config{Seed: 1})
			must(b, err)
			defer nic.Close()
			must(b, nic.ConnectWire(w))
			s, err := Open(b.Context(), Config{
				NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
					Facts: dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: nic.MTU()}}, RxQueues: 1},
				Addresses:  []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
				Addressing: AddressOptions{DuplicateDetection: -1, NoAnnounce: true},
			})
			must(b, err)
			defer s.Close()
			c, err := s.ListenUDP("udp", &net.UDPAddr{Port: 7})
			must(b, err)
			go c.ServePackets(func(_ int, ps []packets.Packet) {
				for i := range ps {
					ps[i].Reply = append(ps[i].Reply, ps[i].Payload...)
				}
			})
			all := make([]frame.Frame, n)
			for i := range all {
				all[i] = w.question(s.HardwareAddr(), uint16(5000+i), 64)
			}
			ask := func(q []frame.Frame) {
				w.left.Store(int32(len(q)))
				w.recv(q)
				<-w.settled
			}
			for range 3 { // the neighbour is known, and the path has a template
				ask(all[:1])
			}
			b.ReportAllocs()
			for b.Loop() {
				ask(all)
			}
		})
	}
}

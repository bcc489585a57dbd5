package rdma

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// seed is logged, and overridable by TEST_SEED.
func seed(t testing.TB) *rand.Rand {
	n := rand.Uint64()
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatalf("TEST_SEED: %v", err)
		}
	}
	t.Logf("TEST_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 1))
}

var (
	ourMAC  = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x01")
	peerMAC = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x02")
)

// tcpFrame describes a frame with one TCP segment, as a peer would send it. Encoded with gVisor's header package, which the
// code under test does not use.
type tcpFrame struct {
	v6       bool
	src, dst tcpip.LinkAddress
	from, to byte // last byte of the addresses
	ports    [2]uint16
	seq, ack uint32
	flags    header.TCPFlags
	window   uint16
	urgent   uint16
	options  []byte
	payload  []byte
	id       uint16
	noDF     bool
	ttl, tos byte
	flow     uint32 // IPv6 flow label
	ipOpts   []byte // IPv4 options, or an IPv6 destination options header
	fragment uint16 // IPv4 fragment offset in bytes, with more to follow
	pad      int    // bytes behind the IP packet
}

// segment is the n'th segment of a flow, 100 bytes each.
func segment(n int) tcpFrame {
	f := tcpFrame{
		src: peerMAC, dst: ourMAC, from: 2, to: 1, ports: [2]uint16{4000, 80},
		seq: 0xffffff00 + uint32(n)*100, ack: 77, flags: header.TCPFlagAck, window: 512, id: uint16(0xfffe + n), ttl: 64,
		payload: make([]byte, 100),
	}
	for i := range f.payload {
		f.payload[i] = byte(n*31 + i)
	}
	return f
}

func (f tcpFrame) bytes() []byte {
	tcp := make([]byte, 20+len(f.options)+len(f.payload))
	header.TCP(tcp).Encode(&header.TCPFields{
		SrcPort: f.ports[0], DstPort: f.ports[1], SeqNum: f.seq, AckNum: f.ack, DataOffset: uint8(20 + len(f.options)),
		Flags: f.flags, WindowSize: f.window, UrgentPointer: f.urgent,
	})
	copy(tcp[20:], f.options)
	copy(tcp[20+len(f.options):], f.payload)
	return f.frame(header.TCPProtocolNumber, tcp, 16)
}

// frame wraps a transport segment, whose checksum is at offset sumAt, in IP and Ethernet.
func (f tcpFrame) frame(proto tcpip.TransportProtocolNumber, segment []byte, sumAt int) []byte {
	src, dst := tcpip.AddrFrom4([4]byte{10, 0, 0, f.from}), tcpip.AddrFrom4([4]byte{10, 0, 0, f.to})
	etherType, ip := header.IPv4ProtocolNumber, []byte(nil)
	if f.v6 {
		src, dst = tcpip.AddrFrom16([16]byte{0: 0xfd, 15: f.from}), tcpip.AddrFrom16([16]byte{0: 0xfd, 15: f.to})
		etherType = header.IPv6ProtocolNumber
		ip = make([]byte, header.IPv6MinimumSize, 128)
		next := proto
		if f.ipOpts != nil {
			ip, next = append(append(ip, byte(proto)), f.ipOpts...), extDestOptions
		}
		header.IPv6(ip).Encode(&header.IPv6Fields{
			TrafficClass: f.tos, FlowLabel: f.flow, PayloadLength: uint16(len(ip) - 40 + len(segment)),
			TransportProtocol: next, HopLimit: f.ttl, SrcAddr: src, DstAddr: dst,
		})
	} else {
		ip = make([]byte, header.IPv4MinimumSize+len(f.ipOpts))
		flags := uint8(header.IPv4FlagDontFragment)
		if f.noDF {
			flags = 0
		}
		if f.fragment > 0 {
			flags = header.IPv4FlagMoreFragments
		}
		header.IPv4(ip).Encode(&header.IPv4Fields{
			TOS: f.tos, TotalLength: uint16(len(ip) + len(segment)), ID: f.id, Flags: flags, FragmentOffset: f.fragment &^ 7, TTL: f.ttl,
			Protocol: uint8(proto), SrcAddr: src, DstAddr: dst,
		})
		ip[0] = 0x40 | byte(len(ip)/4)
		copy(ip[20:], f.ipOpts)
		header.IPv4(ip).SetChecksum(0)
		header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
	}
	sum := checksum.Checksum(segment, header.PseudoHeaderChecksum(proto, src, dst, uint16(len(segment))))
	checksum.Put(segment[sumAt:], ^sum)
	eth := make([]byte, header.EthernetMinimumSize)
	header.Ethernet(eth).Encode(&header.EthernetFields{SrcAddr: f.src, DstAddr: f.dst, Type: etherType})
	out := append(append(eth, ip...), segment...)
	return append(out, make([]byte, f.pad)...)
}

// testWorker is a worker without a queue or a stack.
func testWorker() *worker {
	e := &Endpoint{rxLimit: DefaultRxLimit}
	e.flows = newFlows(tcpip.NewStdClock(), e.resend)
	e.SetLinkAddress(ourMAC)
	return &worker{e: e, attachment: new(attachment), count: new(rxCounters), merge: newMerger(batchFrames)}
}

// load puts frames into the worker's batch, with the same flags for all.
func (w *worker) load(flags dv.RxFlags, frames ...[]byte) []dv.Packet {
	for i, f := range frames {
		w.frames[i] = dv.Packet{Data: f, Flags: flags}
	}
	return w.frames[:len(frames)]
}

package delack

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// testKey keys the hash of flows.
var testKey = random.Source{}.HashKey()

// wireLog records the ACK numbers that it receives, with '+' after those with payload.
type wireLog struct {
	seed    random.HashKey
	answers bool // every ACK tells of what has come twice
	mu      sync.Mutex
	log     []string
}

// WritePacket compares the headers it is given with the packet's own.
func (l *wireLog) WritePacket(pkt *gstack.PacketBuffer, s hdr.Segment) tcpip.Error {
	if own := hdr.ParseSent(pkt, l.seed); !s.IsTCP() || own.Packet != s.Packet ||
		&own.Frame[0] != &s.Frame[0] {
		panic("headers of another packet")
	}
	_, ack := hdr.Numbers(s.TCP())
	note := fmt.Sprint(ack)
	if s.Payload > 0 {
		note += "+"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, note)
	return nil
}

// Answers says what the test has set.
func (l *wireLog) Answers(uint64) bool { return l.answers }

func (l *wireLog) WriteBurst(pkts []*gstack.PacketBuffer) {
	for _, pkt := range pkts {
		l.WritePacket(pkt, hdr.ParseSent(pkt, l.seed))
	}
}

func (l *wireLog) drain() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := strings.Join(l.log, " ")
	l.log = nil
	return s
}

// TestRules gives each script of outgoing segments to a coalescer and looks at what goes out at
// once, and what after the delay. A segment is an ACK number and letters: d data, w another window,
// z zero window, k SACK, t timestamps, p PSH, s SYN, r RST, f FIN, e ECE, o another connection, and
// - for no ACK flag.
func TestRules(t *testing.T) {
	for _, tc := range []struct{ name, script, now, later string }{
		{"first goes at once", "100", "100", ""},
		{"little new data waits", "100 200", "100", "200"},
		{"data takes it along", "100 200 200d", "100 200+", ""},
		{"later data takes it along", "100 200 300d", "100 300+", ""},
		{"fin takes it along", "100 200 200f", "100 200", ""},
		{"later ack takes its place", "100 200 300 400", "100", "400"},
		{"two segments", "100 2100", "100 2100", ""},
		{"two segments in parts", "100 1100 2100", "100 2100", ""},
		{"less than two segments", "100 2099", "100", "2099"},
		{"wraps around", "4294967290 10", "4294967290", "10"},
		{"duplicate", "100 100 100", "100 100 100", ""},
		{"duplicate of a held one", "100 200 200", "100 200 200", ""},
		{"window update", "100 100w", "100 100", ""},
		{"window update of a held one", "100 200 200w", "100 200 200", ""},
		{"to zero window", "100 200z", "100 200", ""},
		{"from zero window", "100 200z 300", "100 200 300", ""},
		{"sack", "100 200k", "100 200", ""},
		{"sack drops an older one", "100 200 300k", "100 300", ""},
		{"after sack", "100 200k 300 400", "100 200 300", "400"},
		{"after duplicate", "100 100 200 300", "100 100 200", "300"},
		{"timestamps may wait", "100t 200t", "100", "200"},
		{"psh", "100 200p", "100 200", ""},
		{"ece", "100 200e", "100 200", ""},
		{"reset lets it go first", "100 200 0r-", "100 200 0", ""},
		{"reset with ack", "100 200 200r", "100 200", ""},
		{"syn forgets", "100 200 0s- 300 400", "100 200 0 300", "400"},
		{"handshake of a client", "0s- 100 200", "0 100", "200"},
		{"handshake of a server", "100s 200", "100", "200"},
		{"backwards", "100 50", "100 50", ""},
		{"behind a held one", "100 300 200", "100 300 200", ""},
		{"sack at first", "100k 200 300", "100 200", "300"},
		{"data backwards", "100 200 150d", "100 200 150+", ""},
		{"two connections", "100 100o 200 200o 200d", "100 100 200+", "200"},
	} {
		for _, v6 := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				wire := &wireLog{seed: testKey}
				c := New(wire, testKey, Options{})
				defer c.Close()
				for _, word := range strings.Fields(tc.script) {
					f := tcpframe.Segment(0)
					f.V6, f.Payload = v6, nil
					letters := strings.TrimLeft(word, "0123456789")
					fmt.Sscan(strings.TrimSuffix(word, letters), &f.Ack)
					for _, l := range letters {
						switch l {
						case 'd':
							f.Payload = []byte("data")
						case 'w':
							f.Window++
						case 'z':
							f.Window = 0
						case 'k':
							f.Options = []byte{1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0}
						case 't':
							f.Options = []byte{1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 5}
						case 'p':
							f.Flags |= header.TCPFlagPsh
						case 's':
							f.Flags |= header.TCPFlagSyn
						case 'r':
							f.Flags |= header.TCPFlagRst
						case 'f':
							f.Flags |= header.TCPFlagFin
						case 'e':
							f.Flags |= 0x40
						case 'o':
							f.Ports[0]++
						case '-':
							f.Flags &^= header.TCPFlagAck
						}
					}
					pkt := f.Packet()
					if err := c.WritePacket(pkt); err != nil {
						t.Fatal(err)
					}
					pkt.DecRef()
				}
				if got := wire.drain(); got != tc.now {
					t.Errorf("%s (IPv6 %v): at once %q, want %q", tc.name, v6, got, tc.now)
				}
				time.Sleep(defaultDelay)
				synctest.Wait()
				if got := wire.drain(); got != tc.later {
					t.Errorf("%s (IPv6 %v): later %q, want %q", tc.name, v6, got, tc.later)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := wire.drain(); got != "" {
					t.Errorf("%s (IPv6 %v): much later %q", tc.name, v6, got)
				}
			})
		}
	}
}

// TestDeadline: an ACK that replaces another one takes over its deadline, and each flow has its
// own.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := &wireLog{seed: testKey}
		c := New(wire, testKey, Options{Delay: 10 * time.Millisecond})
		write := func(port uint16, ack uint32) {
			f := tcpframe.Segment(0)
			f.Payload, f.Ack, f.Ports[0] = nil, ack, port
			pkt := f.Packet()
			c.WritePacket(pkt)
			pkt.DecRef()
		}
		write(1, 100)
		write(2, 1000)
		wire.drain()
		write(1, 200)
		time.Sleep(6 * time.Millisecond)
		write(1, 300)
		write(2, 1100)
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		if got := wire.drain(); got != "" {
			t.Errorf("after 9 ms: %q", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := wire.drain(); got != "300" {
			t.Errorf("after 10 ms: %q", got)
		}
		time.Sleep(6 * time.Millisecond)
		synctest.Wait()
		if got := wire.drain(); got != "1100" {
			t.Errorf("after 16 ms: %q", got)
		}
		write(1, 2250) // less than two segments beyond what the timer sent
		write(1, 2350)
		if got := wire.drain(); got != "2350" {
			t.Errorf("after the timer: %q", got)
		}
		write(1, 2400)
		time.Sleep(6 * time.Millisecond)
		write(1, 5000) // carries the ACK
		write(1, 5100)
		wire.drain()
		time.Sleep(6 * time.Millisecond)
		synctest.Wait()
		if got := wire.drain(); got != "" {
			t.Errorf("held with the deadline of another: %q", got)
		}
		time.Sleep(4 * time.Millisecond)
		synctest.Wait()
		if got := wire.drain(); got != "5100" {
			t.Errorf("after its own deadline: %q", got)
		}
		if s := c.Stats(); s.Held != 6 || s.Saved != 3 || s.Timed != 3 {
			t.Errorf("%+v", s)
		}
		write(1, 5200)
		write(2, 1200)
		c.Close()
		if got := wire.drain(); got != "5200 1200" {
			t.Errorf("sent by Close: %q", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := wire.drain(); got != "" {
			t.Errorf("after Close: %q", got)
		}
		write(1, 500)
		if got := wire.drain(); got != "500" {
			t.Errorf("written after Close: %q", got)
		}
		c.Close()
	})
}

func TestOff(t *testing.T) {
	wire := &wireLog{seed: testKey}
	c := New(wire, testKey, Options{Off: true})
	for ack := range uint32(3) {
		f := tcpframe.Segment(0)
		f.Payload, f.Ack = nil, 100*ack
		pkt := f.Packet()
		c.WritePacket(pkt)
		pkt.DecRef()
	}
	if got := wire.drain(); got != "0 100 200" {
		t.Error(got)
	}
}

// TestConcurrent hammers a few flows and closes in the middle; every ACK number that went out
// last must be the highest written, and no packet may be leaked or released twice (the reference
// counter would panic).
func TestConcurrent(t *testing.T) {
	wire := &wireLog{seed: testKey}
	c := New(wire, testKey, Options{Delay: time.Microsecond})
	var wg sync.WaitGroup
	for port := range uint16(8) {
		wg.Go(func() {
			f := tcpframe.Segment(0)
			f.Ports[0], f.Payload = port, nil
			for ack := range uint32(500) {
				f.Ack = ack * 300
				pkt := f.Packet()
				c.WritePacket(pkt)
				pkt.DecRef()
			}
		})
	}
	wg.Wait()
	c.Close()
	if s := c.Stats(); s.Held == 0 || s.Saved+s.Timed > s.Held {
		t.Errorf("%+v", s)
	}
}

func TestAllocs(t *testing.T) {
	c := New(nothing{}, testKey, Options{})
	defer c.Close()
	f := tcpframe.Segment(0)
	data := f.Packet()
	defer data.DecRef()
	n := testing.AllocsPerRun(100, func() {
		f.Ack += 100
		pkt := tcpframe.ACKPacket(f.Ack)
		c.WritePacket(pkt)
		pkt.DecRef()
		c.WritePacket(data)
	})
	if n != 0 && !racing.Detector {
		t.Errorf("%v allocations per held ACK", n)
	}
}

type nothing struct{}

func (nothing) WritePacket(*gstack.PacketBuffer, hdr.Segment) tcpip.Error { return nil }
func (nothing) WriteBurst([]*gstack.PacketBuffer)                         {}
func (nothing) Answers(uint64) bool                                       { return false }

func BenchmarkCoalescer(b *testing.B) {
	for _, name := range []string{"held", "off"} {
		b.Run(name, func(b *testing.B) {
			c := New(nothing{}, testKey, Options{Off: name == "off"})
			defer c.Close()
			ack := uint32(0)
			b.ReportAllocs()
			for b.Loop() {
				ack += 100
				pkt := tcpframe.ACKPacket(ack)
				c.WritePacket(pkt)
				pkt.DecRef()
			}
		})
	}
}

//go:build linux

package attack

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// floodRate is the most frames that a flood sends per second of processor time that a thread gets.
// On a busy machine the server runs only a part of the time, and its ring overflows in the rest:
// the flood must be slower by the same factor as the server.
const floodRate = 50000

// processorShare is the share of a processor's time that one busy thread gets now, up to 1.
func processorShare(t *testing.T) float64 {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		must(t, unix.Getrusage(unix.RUSAGE_THREAD, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began, before := time.Now(), used()
	for time.Since(began) < time.Second {
	}
	return min(float64(used()-before)/float64(time.Since(began)), 1)
}

// flood sends frames at a rate until done is closed, and returns how many. Frames that do not fit
// into the interface's queue are lost, as on a wire.
func flood(t *testing.T, p *lab.Port, rate int, done <-chan struct{},
	next func() []byte) (sent int) {
	began := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		for due := int(time.Since(began).Seconds() * float64(rate)); sent < due; sent++ {
			if err := p.Send(next()); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Errorf("send a frame: %v", err)
				return sent
			}
			if sent%256 == 0 && over(done) {
				return sent
			}
		}
		select {
		case <-done:
			return sent
		case <-tick.C:
		}
	}
}

func over(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Flags of a TCP segment.
const (
	flagSYN = 0x02
	flagACK = 0x10
)

func TestFloods(t *testing.T) {
	for _, tt := range []struct {
		name  string
		frame func(f *forge) []byte
	}{
		{"bare ACKs, random sources",
			func(f *forge) []byte { return f.tcp(f.stranger(), 80, flagACK) }},
		{"SYNs, random sources", func(f *forge) []byte { return f.tcp(f.stranger(), 80, flagSYN) }},
		{"first fragments", func(f *forge) []byte {
			return f.ip4(f.stranger(), 17,
				0x2000, make([]byte, 1400))
		}},
		{"last fragments", func(f *forge) []byte {
			return f.ip4(f.stranger(), 17, uint16(1000+f.rng.IntN(100)), make([]byte, 1000))
		}},
		{"UDP to no port",
			func(f *forge) []byte { return f.udp(f.stranger(), 9, make([]byte, 18)) }},
		{"ARP claims of strangers", func(f *forge) []byte {
			return f.arp(1, []byte{2, 0, 0, byte(f.rng.IntN(256)), byte(f.rng.IntN(256)), 1},
				f.stranger(), addr(server4))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newServer(t, "http", "--root", site(t))
			p := w.port()
			f := newForge(t, p)
			sent, most := 0, int(floodRate*processorShare(t))
			r := w.under(tt.name, w.browsers(), func(done <-chan struct{}) {
				sent = flood(t, p, most, done, func() []byte { return tt.frame(f) })
			})
			r.note = w.rate(sent, "frames")
			w.judge(r)
		})
	}
}

// resolvers is the number of resolvers that one advertisement names.
const resolvers = 8

// advertisement is a router advertisement of an unknown router, with a resolver, a search domain, a
// prefix and a route that are new as well (RFC 4861, RFC 8106, RFC 4191).
func (f *forge) advertisement() []byte {
	m := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	prefix := func() []byte {
		return binary.BigEndian.AppendUint32([]byte{0x20, 0x01, 0x0d, 0xb8}, f.rng.Uint32())
	}
	rest := make([]byte, 8)
	m = append(m, 25, 2*resolvers+1, 0, 0, 255, 255, 255, 255) // RDNSS, infinite lifetime
	for range resolvers {
		m = append(append(m, prefix()...), 0, 0, 0, 0, 0, 0, 0, 53)
	}
	m = append(m, 31, 3, 0, 0, 255, 255, 255, 255) // DNSSL, infinite lifetime
	m = append(m, 4, 'a'+byte(f.rng.IntN(26)), 'a'+byte(f.rng.IntN(26)),
		'a'+byte(f.rng.IntN(26)), 'a'+byte(f.rng.IntN(26)),
		7, 'e', 'x', 'a', 'm', 'p', 'l', 'e', 0, 0, 0)
	// on link, autonomous
	m = append(m, 3, 4, 64, 0xc0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0)
	m = append(append(m, prefix()...), rest...)
	m = append(m, 24, 2, 64, 0, 255, 255, 255, 255) // route
	m = append(m, prefix()...)
	src := [16]byte{0: 0xfe, 1: 0x80, 8: 2}
	binary.BigEndian.PutUint32(src[12:], f.rng.Uint32())
	return f.icmp6(netipFrom(src), addr("ff02::1"), m)
}

// logLimit is the most that a server may log during one attack, in bytes.
const logLimit = 1 << 20

func TestRouterAdvertisements(t *testing.T) {
	w := newServer(t, "http", "--address", "slaac", "--json-logs", "--root", site(t))
	p := w.port()
	f := newForge(t, p)
	_, before := w.log.written()
	sent := 0
	r := w.under("router advertisements, 100/s", w.browsers(), func(done <-chan struct{}) {
		sent = flood(t, p, 100, done, f.advertisement)
	})
	_, logged := w.log.written()
	if logged -= before; logged > logLimit {
		t.Errorf("the server logged %d bytes, want at most %d", logged, logLimit)
	}
	r.note = w.rate(sent, "frames") + sprintf(", %d KiB of log", logged>>10)
	w.judge(r)
}

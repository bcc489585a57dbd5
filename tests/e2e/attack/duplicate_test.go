//go:build linux

package attack

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// rival is the hardware address of the host that claims the server's address.
var rival = net.HardwareAddr{2, 0, 0x66, 0x66, 0x66, 0x66}

// TestLinkLocalTaken: another host answers duplicate detection of the IPv6 link-local address (RFC
// 4862 section 5.4).
func TestLinkLocalTaken(t *testing.T) {
	t.Parallel()
	w := newCable(t)
	p := w.port()
	f := newForge(t, p)
	var answered atomic.Int32
	go answerProbes(p, f, &answered)
	if !w.tryStart("http", "--address", server4+"/24", "--root", site(t)) {
		text, _ := w.log.written()
		w.t.Errorf("the server did not start: %s", text)
		w.judge(row{attack: "link-local address taken at start", during: 0,
			after: 0, note: "did not start"})
		return
	}
	if answered.Load() == 0 {
		t.Fatal("no probe for the link-local address was seen")
	}
	r := w.under("link-local address taken at start", w.browsers(),
		func(done <-chan struct{}) { <-done })
	if text, _ := w.log.written(); !strings.Contains(text, "fe80") {
		t.Errorf("the log does not name the link-local address")
	}
	r.note = fmt.Sprintf("%d probes answered", answered.Load())
	w.judge(r)
}

// answerProbes claims every link-local address that is probed until the port is closed.
func answerProbes(p *lab.Port, f *forge, answered *atomic.Int32) {
	buf := make([]byte, 2048)
	for {
		b, err := p.Recv(buf, time.Now().Add(time.Minute))
		if err != nil {
			return
		}
		unspecified := make([]byte, 16)
		if len(b) < 78 || b[12] != 0x86 || b[20] != 58 || b[54] != 135 ||
			!bytes.Equal(b[22:38], unspecified) || b[62] != 0xfe {
			continue
		}
		target := netipFrom([16]byte(b[62:78]))
		m := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, target.AsSlice()...)
		m = append(append(m, 2, 1), rival...)
		p.Send(f.icmp6(target, addr("ff02::1"), m))
		answered.Add(1)
	}
}

const (
	// quiet is how long after its start a server may still announce its addresses: twice, two
	// seconds apart (RFC 5227 section 2.3).
	quiet = 4 * time.Second
	// defenceTime is the longest that the answer to a claim may take.
	defenceTime = time.Second
)

// TestAddressClaimed: another host claims the IPv4 address while the server uses it (RFC 5227
// section 2.4).
func TestAddressClaimed(t *testing.T) {
	t.Parallel()
	w := newServer(t, "http", "--root", site(t))
	p := w.port()
	f, heard := newForge(t, p), make(chan time.Time, 16)
	ours := addr(server4)
	go hearAnnouncements(p, ours, heard)
	defended := time.Duration(-1)
	r := w.under("IPv4 address claimed by another host", w.browsers(), func(done <-chan struct{}) {
		time.Sleep(time.Until(w.began.Add(quiet))) // the last announcement causes no event
		claimed := time.Now()
		must(t, p.Send(f.arp(1, rival, ours, ours)))
		defended = defence(heard, claimed)
		<-done
	})
	if defended < 0 {
		t.Errorf("the address was not defended within %v", defenceTime)
	}
	if text, _ := w.log.written(); !strings.Contains(text, server4) ||
		!strings.Contains(text, rival.String()) {
		t.Errorf("the log does not name the address and its rival")
	}
	r.note = "not defended"
	if defended >= 0 {
		r.note = fmt.Sprintf("defended after %v", defended.Round(time.Millisecond))
	}
	w.judge(r)
}

// hearAnnouncements sends the time of each ARP announcement of the server, a broadcast, until the
// port is closed. It reads from the start: a socket that is full of the clients' frames would drop
// the announcement.
func hearAnnouncements(p *lab.Port, ours netip.Addr, heard chan<- time.Time) {
	mac := mustMAC()
	buf := make([]byte, 2048)
	for {
		b, err := p.Recv(buf, time.Now().Add(time.Minute))
		if err != nil {
			return
		}
		if len(b) >= 42 && b[0] == 255 && b[12] == 8 && b[13] == 6 && bytes.Equal(b[22:28], mac) &&
			bytes.Equal(b[28:32], ours.AsSlice()) && bytes.Equal(b[38:42], ours.AsSlice()) {
			heard <- time.Now()
		}
	}
}

// defence returns how long after the claim an announcement was heard; negative if none was.
func defence(heard <-chan time.Time, claimed time.Time) time.Duration {
	timeout := time.After(defenceTime)
	for {
		select {
		case at := <-heard:
			if at.After(claimed) {
				return at.Sub(claimed)
			}
		case <-timeout:
			return -1
		}
	}
}

//go:build linux

package vm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// Small traffic that tests which hosts are reachable.

// pingsOutside makes the guest's kernel ping outside until three answers have arrived, each of them
// once.
func (w *world) pingsOutside(t *testing.T, to netip.Addr) {
	t.Helper()
	out := w.run(t, "ping", "-c", "3", "-i", "0.2", "-w", fmt.Sprint(patience.Seconds()),
		to.String())
	if err := answersOf(out, 3); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// answersOf checks the output of a ping that ends when a number of answers has arrived. As it sends
// until then, an answer that takes longer than the next request leads to one more of both.
func answersOf(out string, atLeast int) error {
	const summary = "packets transmitted, "
	var sent, received int
	at := strings.Index(out, summary)
	if at < 0 {
		return errors.New("no summary")
	}
	line := out[strings.LastIndexByte(out[:at], '\n')+1:]
	if _, err := fmt.Sscanf(line, "%d "+summary+"%d received", &sent, &received); err != nil {
		return fmt.Errorf("the summary: %w", err)
	}
	if received < atLeast || received > sent || strings.Contains(out, "DUP!") {
		return fmt.Errorf("%d answers to %d requests, want %d or more, each once", received, sent,
			atLeast)
	}
	return nil
}

// TestAnswersOf reads outputs of iputils' ping.
func TestAnswersOf(t *testing.T) {
	for line, want := range map[string]bool{
		"3 packets transmitted, 3 received, 0% packet loss, time 431ms":                true,
		"4 packets transmitted, 4 received, 0% packet loss, time 631ms":                true,
		"9 packets transmitted, 3 received, 66% packet loss, time 431ms":               true,
		"3 packets transmitted, 2 received, 33% packet loss, time 431ms":               false,
		"3 packets transmitted, 3 received, +1 duplicates, 0% packet loss, time 431ms": false,
		"3 packets transmitted, 13 received, 0% packet loss, time 431ms":               false,
		"ping: connect: Network is unreachable":                                        false,
		"3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2012ms":  false,
	} {
		answer := "64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=0.017 ms"
		if strings.Contains(line, "duplicates") {
			answer += " (DUP!)"
		}
		err := answersOf(answer+"\n\n--- 192.0.2.1 ping statistics ---\n"+line+"\n", 3)
		if (err == nil) != want {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// pinged pings from outside until three requests in a row are answered in time.
func (w *world) pinged(t *testing.T, to netip.Addr) {
	t.Helper()
	var said string
	eventually(t, func() string { return fmt.Sprintf("three answers of %s: %s", to, said) },
		func() bool {
			pongs, err := w.client.Ping(w.ctx, to, 3)
			said = fmt.Sprint(pongs, err)
			return err == nil && pongs.Received == 3
		})
}

// datagrams sends one datagram of each flow to the slice and checks that each is echoed unchanged.
func (w *world) datagrams(t *testing.T, to netip.Addr) {
	t.Helper()
	if err := w.tryDatagrams(to, patience); err != nil {
		t.Error(err)
	}
}

// tryDatagrams sends one datagram of each flow and returns the first error.
func (w *world) tryDatagrams(to netip.Addr, limit time.Duration) error {
	random := rand.New(rand.NewPCG(1, uint64(to.BitLen())))
	for i := range flows {
		want := make([]byte, []int{1, 20, 300, 1400}[i%4])
		for j := range want {
			want[j] = byte(random.Uint32())
		}
		if err := w.exchange(to, want, limit); err != nil {
			return fmt.Errorf("flow %d to %s: %w", i, to, err)
		}
	}
	return nil
}

// datagram sends one small datagram of a new flow and waits for its echo.
func (w *world) datagram(to netip.Addr, limit time.Duration) error {
	return w.exchange(to, []byte("one"), limit)
}

// exchange sends a datagram of a new flow and checks that it is echoed unchanged.
func (w *world) exchange(to netip.Addr, want []byte, limit time.Duration) error {
	c, err := w.outside.DialContext(w.ctx, "udp", netip.AddrPortFrom(to, 7).String())
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	if _, err := c.Write(want); err != nil {
		return err
	}
	buf := make([]byte, jumbo)
	n, err := c.Read(buf)
	if err == nil && !bytes.Equal(buf[:n], want) {
		err = fmt.Errorf("%d other bytes of %d came back", n, len(want))
	}
	return err
}

// works checks that netdev and slice carry traffic.
func (w *world) works(t *testing.T) {
	t.Helper()
	w.pingsOutside(t, outside4.Addr())
	s := w.slice(t)
	w.datagrams(t, slice4.Addr())
	s.stop(t)
}

// flooding sends frames for the slice's address from outside until stop is called, or the test
// ends.
func (w *world) flooding(t *testing.T) (stop func()) {
	t.Helper()
	return w.floodingTo(t, sliceMAC)
}

// floodingTo is flooding for another address.
func (w *world) floodingTo(t *testing.T, address string) (stop func()) {
	t.Helper()
	mac, err := net.ParseMAC(address)
	if err != nil {
		t.Fatal(err)
	}
	var port *lab.Port
	if err := w.outside.Do(func() (err error) {
		port,
			err = lab.OpenPort("wire0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer port.Close()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		frame := probe.EtherFrame(mac, port.MAC, probe.Experimental, make([]byte, 500))
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				for range 8 {
					port.Send(frame) // frames lost at a full TAP queue do not matter
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(done); <-ended })
	t.Cleanup(stop)
	return stop
}

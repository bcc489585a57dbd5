//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// filterState is what filter show --json tells.
type filterState struct {
	Denials, Spared uint64
	Sources         int
	Offloaded       int
	OffloadDropped  uint64 `json:"offload_dropped"`
	Entries         []struct{ Packets uint64 }
}

// newFiltered starts a web server with a list of the packet filter.
func newFiltered(t *testing.T, list string) (w *world, show func() filterState) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list.nft")
	must(t, os.WriteFile(file, []byte(list), 0o644))
	w = newServer(t, "http", "--root", site(t), "--filter", file)
	return w, func() (s filterState) {
		t.Helper()
		var out bytes.Buffer // megabytes, if thousands are denied
		cmd := exec.Command(program(t), "filter", "show", "--json", "--pid",
			sprintf("%d", w.cmd.Process.Pid))
		cmd.Stdout = &out
		err := w.ns.Start(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		if err == nil {
			err = json.Unmarshal(out.Bytes(), &s)
		}
		if err != nil {
			t.Fatalf("filter show: %v: %.1000s", err, out.Bytes())
		}
		return s
	}
}

// limited denies who sends more than two SYNs a second for three seconds.
const limited = `table inet filter {
	set flood {
		type ipv4_addr
		size 65535
		flags dynamic
	}
	set denied {
		type ipv4_addr
		size 65535
		flags dynamic,timeout
	}
	chain input {
		type filter hook input priority filter; policy accept;
		ip saddr @denied drop
		ip saddr 198.18.0.0/15 tcp flags syn / fin,syn,rst,ack update @flood { ip saddr limit rate over 2/second } add @denied { ip saddr timeout 1m } drop
	}
}
`

// TestFloodsOfSources floods a server that limits SYNs by source: clients are served, and those
// sources that keep it up are denied.
func TestFloodsOfSources(t *testing.T) {
	for _, sources := range []int{1, 100, 10000} {
		name := fmt.Sprintf("SYNs of %d sources, limited", sources)
		t.Run(name, func(t *testing.T) {
			w, show := newFiltered(t, limited)
			p := w.port()
			f := newForge(t, p)
			sent, next, most := 0, 0, int(floodRate*processorShare(t))
			r := w.under(name, w.browsers(), func(done <-chan struct{}) {
				sent = flood(t, p, most, done, func() []byte {
					a := [4]byte{198, 18}
					binary.BigEndian.PutUint16(a[2:], uint16(next%sources))
					next++
					return f.tcp(netip.AddrFrom4(a), 80, flagSYN)
				})
			})
			s := show()
			r.note = w.rate(sent, "frames") + sprintf(", %d sources denied, %d dropped by the NIC",
				s.Denials, s.OffloadDropped)
			// 10,000 sources send some five SYNs each in a second, on a busy machine fewer
			if sources <= 100 && s.Denials < uint64(sources) {
				t.Errorf("of %d sources %d are denied", sources, s.Denials)
			}
			w.judge(r)
		})
	}
}

// TestDeniedFlood measures requests while sources that are denied send all that the machine makes,
// and without that. The ratio of their times is for the table, and not judged: machines are busy.
func TestDeniedFlood(t *testing.T) {
	w, show := newFiltered(t, "chain input { ip saddr 198.18.0.0/15 drop; }")
	p := w.port()
	f := newForge(t, p)
	frames := make([][]byte, 1000)
	for i := range frames {
		frames[i] = f.tcp(f.stranger(), 80, flagSYN)
	}
	var quiet, flooded []time.Duration
	w.times() // connections are made, and the server is warm
	sent := 0
	var spent time.Duration
	for range 3 { // in turns
		quiet = append(quiet, w.times()...)
		done, ended := make(chan struct{}), make(chan struct{})
		from := time.Now()
		go func() {
			defer close(ended)
			sent += flood(t, p, 10_000_000, done, func() []byte { return frames[f.rng.IntN(1000)] })
		}()
		flooded = append(flooded, w.times()...)
		close(done)
		<-ended
		spent += time.Since(from)
	}
	s := show()
	t.Logf("%.0f frames/s of denied sources, of which the NIC has dropped %.0f %%",
		float64(sent)/spent.Seconds(), 100*float64(s.OffloadDropped)/float64(sent))
	for _, part := range []int{50, 99} {
		a, b := percentile(quiet, part), percentile(flooded, part)
		t.Logf("p%d of %d and %d requests: %v without, %v with: ratio %.2f", part, len(quiet),
			len(flooded), a, b, float64(b)/float64(a))
	}
	if s.Offloaded == 0 || s.OffloadDropped == 0 {
		t.Errorf("nothing is dropped by the NIC: %+v", s)
	}
}

// times makes requests of several clients for two seconds, and returns how long each took.
func (w *world) times() (all []time.Duration) {
	w.t.Helper()
	newClient := w.browsers()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var mu sync.Mutex
	var each sync.WaitGroup
	for range clients {
		each.Go(func() {
			c := newClient()
			for ctx.Err() == nil {
				began := time.Now()
				if err := c(context.Background()); err != nil {
					w.t.Errorf("a request: %v", err)
					return
				}
				mu.Lock()
				all = append(all, time.Since(began))
				mu.Unlock()
			}
		})
	}
	each.Wait()
	return all
}

func percentile(all []time.Duration, part int) time.Duration {
	slices.Sort(all)
	return all[len(all)*part/100].Round(time.Microsecond)
}

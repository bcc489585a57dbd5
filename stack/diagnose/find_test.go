package diagnose_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/diagnose"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// pair is a server at two times.
type pair struct{ before, after diagnose.Snapshot }

var began = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

const (
	pairSeconds = 10
	pairQueues  = 4
	pairConns   = 20
)

// idlePair is a server with rings and listeners that nobody asks for anything.
func idlePair() *pair {
	p := new(pair)
	for i, s := range []*diagnose.Snapshot{&p.before, &p.after} {
		at := began.Add(time.Duration(i) * pairSeconds * time.Second)
		s.Stats = admin.Counters{Time: at, Counters: map[string]uint64{},
			Gauges: map[string]uint64{"rx_active_queues": pairQueues, "memory_limit": 1 << 30}}
		s.Health = []admin.Reporter{{Reporter: "device", State: "healthy"}}
		s.Facts = admin.Facts{Time: at, Backend: "rings", Device: "mlx5_0", Netdev: "eth0",
			MTU: 1500, PortMTU: 1500, Segments: true, Processors: 8,
			BusySeconds: 100 + 0.1*float64(i), GCSeconds: 1 + 0.001*float64(i)}
		s.Host = diagnose.Host{Card: "mlx5_0", CardCPUs: []int{0, 1, 2, 3}, CPUs: []int{2, 3, 4}}
		s.Sockets = []stack.Socket{{Network: "tcp", State: "LISTEN", SendQ: 2048,
			Local: netip.MustParseAddrPort("192.0.2.10:80")}}
		for q := range pairQueues {
			for _, name := range []string{"rx%d_bytes", "rx%d_packets", "rx%d_stalls",
				"tx%d_bytes", "tx%d_packets"} {
				s.Stats.Counters[fmt.Sprintf(name, q)] = 1000
			}
			s.Stats.Gauges[fmt.Sprintf("rx%d_ring_size", q)] = 1024
		}
		s.Stats.Counters["tx4_bytes"] = 1000 // there are more send queues
	}
	for q := range pairQueues {
		p.asleep(q, 0.999)
	}
	return p
}

// loadedPair is the same server with some load on each queue, and connections.
func loadedPair() *pair {
	p := idlePair()
	for q := range pairQueues {
		p.queue("rx", q, map[string]uint64{"packets": 200_000, "bytes": 200 << 20,
			"polls": 60_000, "hits": 50_000})
		p.queue("tx", q, map[string]uint64{"packets": 100_000, "bytes": 900 << 20, "lso": 50_000})
		p.asleep(q, 0.6)
	}
	p.add("tcp_segments_sent", 400_000)
	p.add("tcp_retransmits", 40)
	p.add("tcp_timeouts", 2)
	p.add("tcp_passive_connection_openings", 5_000)
	p.add("udp_packets_received", 10_000)
	p.add("udp_receive_buffer_errors", 2)
	p.add("link_rx_verified", 500)
	p.after.Stats.Gauges["memory_used"] = 100 << 20
	p.after.Facts.BusySeconds, p.after.Facts.GCSeconds = 140, 2
	p.before.Host.PauseReceived, p.after.Host.PauseReceived = 5000, 5002
	for n := range pairConns {
		p.conn(n, stack.Socket{SendQ: 20_000, TCP: &stack.TCPInfo{MSS: 1448, Cwnd: 40, Unacked: 12,
			RTT: 20 * time.Millisecond, SndWnd: 1 << 20, SndBuf: 1 << 20}})
	}
	return p
}

// add adds to a counter between the snapshots.
func (p *pair) add(name string, n uint64) {
	p.before.Stats.Counters[name] += 1000
	p.after.Stats.Counters[name] += 1000 + n
}

// queue sets what a queue did.
func (p *pair) queue(direction string, q int, did map[string]uint64) {
	for name, n := range did {
		full := fmt.Sprintf("%s%d_%s", direction, q, name)
		p.before.Stats.Counters[full], p.after.Stats.Counters[full] = 1000, 1000+n
	}
}

// asleep sets the share of the time that a worker slept.
func (p *pair) asleep(q int, share float64) {
	p.queue("rx", q, map[string]uint64{"asleep_nanos": uint64(share * pairSeconds * 1e9)})
}

// conn puts a connection into both snapshots, in the place of the one of that number.
func (p *pair) conn(n int, s stack.Socket) {
	s.Network, s.State = "tcp", "ESTAB"
	s.Local = netip.MustParseAddrPort("192.0.2.10:80")
	s.Remote = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(10_000+n))
	for _, in := range []*diagnose.Snapshot{&p.before, &p.after} {
		in.Sockets = slices.DeleteFunc(in.Sockets, func(o stack.Socket) bool {
			return o.Remote == s.Remote
		})
		in.Sockets = append(in.Sockets, s)
	}
}

// planted is a problem, and what its evidence has.
type planted struct {
	name, evidence string
	plant          func(p *pair)
}

func plantedProblems() []planted {
	return []planted{
		{"ring-too-small", "9000 of 809000 frames (1.1 %) found no room; the ring of queue 2 " +
			"holds 64, and was found empty 30 times", func(p *pair) {
			p.queue("rx", 2, map[string]uint64{"stalls": 30})
			p.add("link_rx_out_of_buffer", 9000)
			p.after.Stats.Gauges["rx2_ring_size"] = 64
		}},
		{"one-hot-queue", "queue 1 is at work for 97 % of the time, with 77 % of the packets",
			func(p *pair) {
				p.queue("rx", 1, map[string]uint64{"packets": 2_000_000})
				p.asleep(1, 0.03)
			}},
		{"flows-not-spread", "2 of 4 queues get flows, and their workers are at work for 96 % of " +
			"the time or more; the device refused to spread flows 3 times", func(p *pair) {
			p.after.Stats.Gauges["rx_active_queues"] = 2
			p.asleep(0, 0.04)
			p.asleep(1, 0.02)
			p.add("link_spread_refused", 3)
		}},
		{"polling-idle", "4 workers never slept and looked 400000 times a second; 0.1 % of these " +
			"looks found frames", func(p *pair) {
			for q := range pairQueues {
				p.asleep(q, 0)
				p.queue("rx", q, map[string]uint64{"polls": 1_000_000, "hits": 1000})
			}
		}},
		{"polling-idle", "4 workers never slept, and no frame came", func(p *pair) {
			for q := range pairQueues {
				p.asleep(q, 0)
				p.queue("rx", q, map[string]uint64{"polls": 0, "hits": 0, "packets": 0})
			}
		}},
		{"client-window-full", "2 of 20 connections wait for room at the client; that of " +
			"192.0.2.1:10001 takes 64000 bytes, and 900000 are to be sent", func(p *pair) {
			p.conn(0, stack.Socket{SendQ: 5000, TCP: &stack.TCPInfo{MSS: 1448, Cwnd: 40}})
			p.conn(1, stack.Socket{SendQ: 900_000, TCP: &stack.TCPInfo{MSS: 1448, Cwnd: 80,
				Unacked: 44, RTT: 80 * time.Millisecond, SndWnd: 64_000, SndBuf: 1 << 20}})
		}},
		{"send-buffer-full", "3 of 20 connections have a send buffer's worth under way; that of " +
			"192.0.2.1:10000 is of 65536 bytes, its path takes 1448000 and its client 4194304",
			func(p *pair) {
				for n := range 3 {
					p.conn(n, stack.Socket{SendQ: 65_000, TCP: &stack.TCPInfo{MSS: 1448,
						Cwnd: 1000, Unacked: 44, RTT: 80 * time.Millisecond, SndWnd: 4 << 20,
						SndBuf: 64 << 10}})
				}
			}},
		{"listener-backlog", "600 attempts to connect were dropped, 5000 connections were " +
			"accepted", func(p *pair) { p.add("tcp_listen_overflow_syn_drop", 600) }},
		{"listener-backlog", "12 connections to 192.0.2.10:80 wait to be accepted, of 14 that may",
			func(p *pair) {
				p.before.Sockets[0].RecvQ, p.before.Sockets[0].SendQ = 13, 14
				p.after.Sockets[0].RecvQ, p.after.Sockets[0].SendQ = 12, 14
			}},
		{"receive-buffers-full", "91 datagrams (0.9 %) were dropped, 80 of them for the socket " +
			"192.0.2.10:53, where 9000 bytes wait", func(p *pair) {
			p.add("udp_receive_buffer_errors", 89)
			for i, s := range []*diagnose.Snapshot{&p.before, &p.after} {
				s.Sockets = append(s.Sockets, stack.Socket{Network: "udp", State: "UNCONN",
					Local: netip.MustParseAddrPort("192.0.2.10:53"), RecvQ: 9000,
					Drops: 7 + uint64(i)*80})
			}
		}},
		{"receive-buffers-full", "of 1 of 20 connections nothing was read, though data is there: " +
			"70000 bytes on that of 192.0.2.1:10003", func(p *pair) {
			p.conn(3, stack.Socket{RecvQ: 70_000, TCP: &stack.TCPInfo{BytesReceived: 90_000}})
		}},
		{"memory-pressure", "connections hold 800000000 of 1073741824 bytes; two thirds were " +
			"reached 2 times, all of it 0 times", func(p *pair) {
			p.after.Stats.Gauges["memory_used"] = 800_000_000
			p.add("memory_pressures", 2)
		}},
		{"retransmits-loss", "8038 of 400000 segments (2 %) were sent again as the peer told " +
			"that they are missing, 8540 for any reason", func(p *pair) {
			p.add("tcp_retransmits", 7500)
			p.add("link_tx_resent", 1500)
			p.add("link_tx_spared", 500)
			p.add("tcp_slow_start_retransmits", 200)
			p.add("tcp_segments_acked_with_dsack", 300)
		}},
		{"retransmits-reordering", "7000 of 400000 segments (1.8 %) were sent again though the " +
			"peer had them already", func(p *pair) {
			p.add("tcp_retransmits", 7500)
			p.add("tcp_segments_acked_with_dsack", 7000)
		}},
		{"retransmits-timeout", "4002 of 400000 segments (1 %) were sent again as a timer expired",
			func(p *pair) {
				p.add("tcp_retransmits", 5000)
				p.add("tcp_timeouts", 3000)
				p.add("tcp_slow_start_retransmits", 1000)
			}},
		{"small-mtu", "the MTU is 1500, that of the port 9000; 40000 packets a second are sent",
			func(p *pair) { p.after.Facts.PortMTU = 9000 }},
		{"small-mtu", "the MTU is 1280, that of the port 1500", func(p *pair) {
			p.after.Facts.MTU = 1280
		}},
		{"no-tso", "40000 packets a second of 9437 bytes each, none of them left to the NIC",
			func(p *pair) { p.after.Facts.Segments = false }},
		{"numa-far", "the process may use the processors 4-7,12; those at the card are 0-3",
			func(p *pair) { p.after.Host.CPUs = []int{4, 5, 6, 7, 12} }},
		{"gc-share", "25 % of 4.0 busy processors (of 8) went to garbage collection",
			func(p *pair) { p.after.Facts.GCSeconds = 11 }},
		{"pause-frames", "9000 pause frames received, 20 sent, 902 a second", func(p *pair) {
			p.after.Host.PauseReceived, p.after.Host.PauseSent = 14_000, 20
		}},
		{"packet-sockets", "frames go through packet sockets of eth0, which has the device " +
			"mlx5_0; that is in error: removed", func(p *pair) {
			p.after.Facts.Backend, p.after.Facts.Device = "packet", ""
			p.after.Health[0].State, p.after.Health[0].Reason = "error", "removed"
		}},
		{"software-checksums", "760500 of 800000 received frames (95 %)",
			func(p *pair) { p.add("link_rx_verified", 760_000) }},
		{"capture-left-on", "2 captures run, the first since", func(p *pair) {
			since := []time.Time{began.Add(-time.Hour), began.Add(time.Second)}
			p.after.Facts.Captures = since
		}},
		{"debug-endpoints", "served to clients: /-/status, /-/echo",
			func(p *pair) { p.after.Facts.Debug = []string{"/-/status", "/-/echo"} }},
	}
}

// TestPlanted plants a problem of each kind into a server under load: it is found, and named first.
func TestPlanted(t *testing.T) {
	left := map[string]bool{}
	for _, k := range diagnose.Kinds() {
		left[k.Name] = true
	}
	for _, c := range plantedProblems() {
		p := loadedPair()
		c.plant(p)
		found := diagnose.Find(p.before, p.after)
		if len(found) == 0 || found[0].Name != c.name {
			t.Errorf("%s: found %+v", c.name, found)
			continue
		}
		if f := found[0]; !strings.Contains(f.Evidence, c.evidence) || f.Cause == "" ||
			f.Cure == "" || f.Cost <= 0 || f.Cost > 100 {
			t.Errorf("%s: %+v\nwant %s", c.name, f, c.evidence)
		}
		delete(left, c.name)
	}
	if len(left) > 0 {
		t.Errorf("not planted: %v", left)
	}
}

// TestSound: nothing is found on a server that is idle, or under ordinary load, or whose device
// came back in between and counts from 0, nor on a stack in memory.
func TestSound(t *testing.T) {
	back := loadedPair()
	for name := range back.before.Stats.Counters {
		if strings.HasPrefix(name, "rx") || strings.HasPrefix(name, "tx") {
			back.before.Stats.Counters[name] += 1 << 40
		}
	}
	real := &pair{before: diagnose.Take(memoryStack(t))}
	real.after = real.before
	for name, p := range map[string]*pair{"idle": idlePair(), "loaded": loadedPair(),
		"device back": back, "nothing known": new(pair), "in memory": real} {
		if found := diagnose.Find(p.before, p.after); len(found) > 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestTogether plants all problems at once that go together: what costs most comes first.
func TestTogether(t *testing.T) {
	p := loadedPair()
	for _, c := range plantedProblems() {
		if c.name != "polling-idle" && c.name != "packet-sockets" && c.name != "one-hot-queue" {
			c.plant(p)
		}
	}
	found := diagnose.Find(p.before, p.after)
	if len(found) < 15 || !slices.IsSortedFunc(found, func(a, b diagnose.Finding) int {
		return int(b.Cost*1e6 - a.Cost*1e6)
	}) {
		t.Errorf("%d findings: %+v", len(found), found)
	}
}

// TestBounds: a finding begins where its bound is.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(p *pair)
		found bool
	}{
		{"drops of others", func(p *pair) { p.add("link_rx_out_of_buffer", 9000) }, false},
		{"nine drops", func(p *pair) {
			p.queue("rx", 0, map[string]uint64{"dropped": 9})
		}, false},
		{"all queues at work", func(p *pair) {
			for q := range pairQueues {
				p.asleep(q, 0.02)
			}
		}, false},
		{"polling with work", func(p *pair) {
			for q := range pairQueues {
				p.asleep(q, 0)
				p.queue("rx", q, map[string]uint64{"polls": 1_000_000, "hits": 300_000})
			}
		}, false},
		{"a full window on a short path", func(p *pair) {
			p.conn(1, stack.Socket{SendQ: 900_000, TCP: &stack.TCPInfo{MSS: 1448, Cwnd: 80,
				Unacked: 44, RTT: time.Millisecond, SndWnd: 64_000, SndBuf: 1 << 20}})
		}, false},
		{"no window at all on one", func(p *pair) {
			p.conn(1, stack.Socket{SendQ: 900_000, TCP: &stack.TCPInfo{MSS: 1448, Cwnd: 80,
				RTT: time.Millisecond, SndBuf: 1 << 20}})
		}, true},
		{"a full send buffer that the window bounds", func(p *pair) {
			p.conn(1, stack.Socket{SendQ: 65_000, TCP: &stack.TCPInfo{MSS: 1448, Cwnd: 45,
				Unacked: 44, RTT: 80 * time.Millisecond, SndWnd: 4 << 20, SndBuf: 64 << 10}})
		}, false},
		{"an MTU for a tunnel", func(p *pair) { p.after.Facts.MTU = 1420 }, false},
		{"small packets without TSO", func(p *pair) {
			p.after.Facts.Segments = false
			for q := range pairQueues {
				p.queue("tx", q, map[string]uint64{"bytes": 20 << 20})
			}
		}, false},
		{"nothing known of sleep", func(p *pair) {
			for q := range pairQueues {
				delete(p.after.Stats.Counters, fmt.Sprintf("rx%d_asleep_nanos", q))
				p.queue("rx", q, map[string]uint64{"polls": 0, "hits": 0, "packets": 0})
			}
		}, false},
		{"late segments of a busy peer", func(p *pair) { // seen with wrk on 2 busy processors
			p.add("tcp_retransmits", 3700)
			p.add("tcp_segments_acked_with_dsack", 3700)
		}, false},
		{"probes of a peer without a processor", func(p *pair) { // seen beside other load
			p.add("tcp_retransmits", 30_000)
			p.add("tcp_timeouts", 10_000)
			p.add("tcp_segments_acked_with_dsack", 30_000)
			p.add("link_tx_needless", 30_000)
		}, false},
		{"garbage of a moment", func(p *pair) {
			p.after.Facts.BusySeconds, p.after.Facts.GCSeconds = 100.9, 1.5
			p.after.Stats.Time = began.Add(300 * time.Millisecond)
		}, false},
		{"processors of both nodes", func(p *pair) { p.after.Host.CPUs = []int{3, 4} }, false},
		{"packet sockets without a card", func(p *pair) {
			p.after.Facts.Backend, p.after.Host.Card = "packet", ""
		}, false},
		{"a capture that has begun just now", func(p *pair) {
			p.after.Facts.Captures = []time.Time{began.Add(time.Second)}
		}, false},
	} {
		p := loadedPair()
		c.plant(p)
		if found := diagnose.Find(p.before, p.after); len(found) > 0 != c.found {
			t.Errorf("%s: %+v", c.name, found)
		}
	}
}

func memoryStack(t *testing.T) *stack.Stack {
	server, _ := stacktest.Pair(t)
	return server
}

// TestCounters: each counter and gauge that the rules name is one that a stack has.
func TestCounters(t *testing.T) {
	have := diagnose.Take(memoryStack(t)).Stats
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, file := range sources {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"((tcp|udp|link|memory)_[a-z_]+)"`).
			FindAllStringSubmatch(string(text), -1) {
			named++
			if _, ok := have.Value(m[1]); !ok {
				t.Errorf("%s: a stack has no %s", file, m[1])
			}
		}
	}
	if named < 15 {
		t.Errorf("%d names in the sources", named)
	}
}

// TestRunbook compares the table of docs/runbook.md with what may be found.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range diagnose.Kinds() {
		if row := fmt.Sprintf("\n| `%s` | %s | %s |\n", k.Name, k.Cause, k.Cure); !strings.Contains(
			string(page), row) {
			t.Errorf("docs/runbook.md lacks the row%s", row)
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(page), -1)
	if len(rows) != len(diagnose.Kinds()) {
		t.Errorf("docs/runbook.md has %d rows, want %d", len(rows), len(diagnose.Kinds()))
	}
}

package sim

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// alone makes the test process one in which runs repeat.
func alone(t *testing.T) {
	processors, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(processors)
		debug.SetGCPercent(percent)
	})
}

// seeds is how many seeds to run: SIM_SEEDS, or a few.
func seeds(t *testing.T) uint64 {
	s := os.Getenv("SIM_SEEDS")
	if s == "" {
		return 8
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("SIM_SEEDS: %v", err)
	}
	return n
}

// TestKinds: some worlds of each rare kind break no invariant.
func TestKinds(t *testing.T) {
	alone(t)
	for _, kind := range []string{"fallback", "upgrades", "rings", "killed", "late",
		"merged", "resized", "paced"} {
		t.Run(kind, func(t *testing.T) {
			for seed, left := uint64(0), seeds(t); left > 0; seed++ {
				p := NewPlan(seed)
				if !p.Has(kind) {
					continue
				}
				left--
				if r := Run(p); r.Err != nil {
					t.Errorf("go run ./tests/sim/run -seed %d: %v", seed, r.Err)
				}
				runtime.GC()
			}
		})
	}
}

// TestSeeds: no seed breaks an invariant. `make sim SEEDS=100000` runs more, on all processors.
func TestSeeds(t *testing.T) {
	alone(t)
	for seed := range seeds(t) {
		if r := Run(NewPlan(seed)); r.Err != nil {
			t.Errorf("go run ./tests/sim/run -seed %d: %v", seed, r.Err)
		}
		runtime.GC()
	}
}

// TestSegments: questions of many datagrams, sent by one call and read by few, over a lossy cable,
// between two of ours and with a plain host at either end.
func TestSegments(t *testing.T) {
	alone(t)
	var joined uint64
	for seed := range seeds(t) {
		d := newDice(seed, 7)
		hosts := []HostPlan{newOurs(d, 1500), newOurs(d, 1500), {Kind: Plain}}
		for i := range hosts {
			hosts[i].IPv6 = true
		}
		var work []WorkPlan
		for i, ends := range [][2]int{{0, 1}, {1, 0}, {0, 2}, {2, 0}} {
			work = append(work, WorkPlan{Kind: Datagrams, Server: ends[0], Client: ends[1],
				Count: 4, Bytes: d.IntN(1 << 16), Back: 3 + 4*d.IntN(250), IPv6: i%2 == 0})
		}
		net := NetPlan{MTU: 1500, Delay: time.Millisecond, Quantum: 200 * time.Microsecond,
			Harm: Harm{Lose: 0.02, Double: 0.02}, HarmFor: time.Minute}
		r := Run(Plan{Seed: seed, Net: net, Hosts: hosts, Work: work})
		if r.Err != nil {
			t.Errorf("seed %d: %v", seed, r.Err)
		}
		joined += r.Merged
		runtime.GC()
	}
	if joined == 0 {
		t.Error("no link has joined datagrams")
	}
	t.Logf("%d datagrams were joined", joined)
}

// TestPathMTU: questions of datagrams pass a router whose MTU is less than the links', whole, in
// fragments and in parts; those that may not be fragmented are cut to what has room there, and no
// further. TCP connections carry all their bytes over it, also if it comes in the middle of them.
func TestPathMTU(t *testing.T) {
	alone(t)
	var refused uint64
	for seed := range seeds(t) {
		r := Run(NewPathPlan(seed))
		if r.Err != nil {
			t.Errorf("go run ./tests/sim/run -path -seed %d: %v", seed, r.Err)
		}
		refused += r.TooBig
		runtime.GC()
	}
	if refused == 0 {
		t.Error("the router has refused nothing")
	}
	t.Logf("the router has refused %d packets", refused)
}

// TestBeside: a stack serves on the address of a kernel whose netdev, addresses, routes, MTU and
// MAC change during transfers, and whose device goes away: nothing is lost but with an address, and
// the kernel answers for ports that nobody has, for no others.
func TestBeside(t *testing.T) {
	alone(t)
	for seed := range 3 * seeds(t) {
		if r := Run(NewBesidePlan(seed)); r.Err != nil {
			t.Errorf("go run ./tests/sim/run -host -seed %d: %v", seed, r.Err)
		}
		runtime.GC()
	}
}

// TestFragmentsOfPlain: a plain host floods ours with datagrams of several fragments each, some of
// which its queue for an unknown neighbour has no room for: all datagrams arrive when sent again.
func TestFragmentsOfPlain(t *testing.T) {
	alone(t)
	ours := newOurs(newDice(1, 2), 1500)
	ours.Device.Rings.RxQueueSize = 512
	r := Run(Plan{Seed: 1, Net: NetPlan{MTU: 1500, Delay: time.Microsecond,
		Quantum: 200 * time.Microsecond}, Hosts: []HostPlan{ours, {Kind: Plain}},
		Work: []WorkPlan{{Kind: Flood, Client: 1, Count: 101, Bytes: maxQuestion - 8,
			Pause: time.Millisecond}}})
	if r.Err != nil {
		t.Error(r.Err)
	}
}

// cookiePlan makes more connections at once than a backlog of 8 holds, where frames are late.
func cookiePlan() Plan {
	ours := newOurs(newDice(1, 2), 1500)
	return Plan{Net: NetPlan{MTU: 1500, Harm: Harm{Reorder: 0.01}, HarmFor: time.Second},
		Hosts: []HostPlan{ours, ours}, Work: []WorkPlan{{Kind: Burst, Client: 1, Count: 21}}}
}

// TestSecondOfHandshake: what a server sends in the second connection of one handshake is not
// expected at the client; in any other case a port has one connection.
func TestSecondOfHandshake(t *testing.T) {
	for backlog, want := range map[int]bool{8: true, 0: false} {
		p := cookiePlan()
		p.Hosts[0].Memory.Backlog = backlog
		j := &job{w: newWorld(p), plan: p.Work[0], sessions: map[int]*session{}}
		first, second := j.servedSession(7), j.servedSession(7)
		if own := first != second; own != want {
			t.Errorf("backlog %d: the second counts for itself: %v", backlog, own)
		}
	}
}

// TestSecondAfterOutage: the second connection of one handshake is the client's if an outage ended
// the first before an answer came, whatever that had got; it is another if one has come.
func TestSecondAfterOutage(t *testing.T) {
	for _, tt := range []struct {
		got, sent, came int
		own             bool
	}{{0, 0, 0, false}, {2567, 0, 0, false}, {2567, 5600, 0, false}, {2567, 5600, 1, true}} {
		p := cookiePlan()
		p.Hosts[0].Memory.Backlog = 8
		j := &job{w: newWorld(p), plan: p.Work[0], sessions: map[int]*session{}}
		first := j.servedSession(7)
		first.there.got, first.there.recvErr = tt.got, syscall.ENETDOWN
		first.back.sent, first.back.got, first.back.sendErr = tt.sent, tt.came, syscall.ENETDOWN
		second := j.servedSession(7)
		if own := first != second; own != tt.own {
			t.Errorf("after %+v the second counts for itself: %v", tt, own)
		}
		if second.there.got != 0 || second.there.recvErr != nil || second.back.sent != 0 ||
			second.back.sendErr != nil {
			t.Errorf("after %+v the second begins with %+v", tt, *second.there)
		}
	}
}

// TestServerAlone: a server's end may wait until its peer leaves TIME-WAIT only where a SYN cookie
// can have opened it a second time.
func TestServerAlone(t *testing.T) {
	for backlog, may := range map[int]bool{8: true, 0: false} {
		p := cookiePlan()
		p.Hosts[0].Memory.Backlog = backlog
		w := newWorld(p)
		w.began, w.tasks = 1, []*task{{}}
		w.clock.AfterFunc(timeWait, func() {})
		w.clock.Step()
		if err := w.stall(); may != (err == nil) {
			t.Errorf("backlog %d: %v", backlog, err)
		}
	}
}

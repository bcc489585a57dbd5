package filter

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// numberedFlow returns one of as many flows as there are numbers.
func numberedFlow(n uint32) flow {
	return flow{family: 4, proto: protoUDP, local: address{hi: 1}, remote: address{hi: uint64(n)},
		localPort: uint16(40000 + n%7), remotePort: 53}
}

// TestFlows: what is noted is found until it is over, and nothing else; when there is no room what
// was seen last stays.
func TestFlows(t *testing.T) {
	var f flows
	f.seedHash()
	r := rand.New(rand.NewPCG(36, 10))
	noted := map[uint32]uint32{} // when
	now := uint32(1)
	for range 20_000 {
		n := r.Uint32N(3000)
		if k := numberedFlow(n); r.IntN(2) == 0 {
			f.note(k, now, true)
			noted[n] = now
		} else {
			at, known := noted[n]
			known = known && now-at <= idleDatagrams
			if got := f.has(&k, now, 0); got != known {
				t.Fatalf("flow %d, noted at %d, is remembered at %d: %v", n, at, now, got)
			}
			if known {
				noted[n] = now
			}
		}
		now += r.Uint32N(10) / 9
	}
	if n := f.count(); n != len(noted) {
		t.Errorf("%d flows are remembered, want %d", n, len(noted))
	}
	// a second that others are ahead by
	k := numberedFlow(5000)
	f.note(k, now+1, true)
	if !f.has(&k, now, 0) {
		t.Error("a flow that was seen a second from now is over")
	}
	if k.remotePort++; f.has(&k, now, 0) || f.remembers(&k, now) {
		t.Error("another port is remembered")
	}
}

// TestRoomForFlows: no more flows are remembered than there is room for; those that are seen stay.
func TestRoomForFlows(t *testing.T) {
	var f flows
	f.seedHash()
	const seen = 100
	now := uint32(1)
	for n := range uint32(2 * maxFlows) {
		f.note(numberedFlow(n), now, true)
		if n%1024 == 0 {
			now++
			for k := range uint32(min(n, seen)) {
				k := numberedFlow(k)
				if !f.has(&k, now, 0) {
					t.Fatalf("%+v is forgotten behind %d others", k, n)
				}
			}
		}
	}
	if n := f.count(); n > maxFlows || n < maxFlows*9/10 {
		t.Errorf("%d flows are remembered, want up to %d", n, maxFlows)
	}
	now += idleDatagrams + 1
	for n := range uint32(maxFlows / 2) {
		f.note(numberedFlow(3*maxFlows+n), now, true)
	}
	for n := range uint32(maxFlows / 2) {
		if k := numberedFlow(3*maxFlows + n); !f.has(&k, now, 0) {
			t.Fatalf("%+v is forgotten in place of those that are over", k)
		}
	}
}

// TestFlowsFromManyQueues: what one goroutine has noted others find while the tables grow.
func TestFlowsFromManyQueues(t *testing.T) {
	var f flows
	f.seedHash()
	var workers sync.WaitGroup
	for w := range uint32(4) {
		workers.Go(func() {
			for n := range uint32(3000) {
				k := numberedFlow(n<<2 | w)
				f.note(k, n, true)
				if old := numberedFlow((n/2)<<2 | w); !f.has(&k, n, 0) || n < idleDatagrams &&
					!f.has(&old, n, flagFIN) {
					t.Errorf("flow %d is not found", n)
				}
			}
		})
	}
	workers.Wait()
	if n := f.count(); n != 4*3000 {
		t.Errorf("%d flows are remembered, want %d", n, 4*3000)
	}
}

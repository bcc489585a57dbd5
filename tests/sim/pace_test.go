package sim

import (
	"testing"
	"time"
)

// TestPace: a transfer that takes three times as long as it may need is found, and what frames and
// faults cost is allowed for.
func TestPace(t *testing.T) {
	ours := newOurs(newDice(1, 2), 1500)
	ours.ACKDelay = 0
	for _, tt := range []struct {
		name   string
		bytes  int
		took   time.Duration
		dial   uint64 // frames lost before the client dialled,
		losses uint64 // and before the end
		send   int    // the client's buffer; 0: the usual one
		fault  time.Duration
		late   time.Duration // that the process before passes its frames on
		slow   bool
	}{
		{"as long as slow start", 300 << 10, 500 * time.Millisecond, 0, 0, 0, 0, 0, false},
		{"stuck", 300 << 10, 2500 * time.Millisecond, 0, 0, 0, 0, 0, true},
		{"two frames lost", 300 << 10, 2500 * time.Millisecond, 0, 2, 0, 0, 0, false},
		{"two frames lost before", 300 << 10, 2500 * time.Millisecond, 2, 2, 0, 0, 0, true},
		{"a small buffer", 300 << 10, 2500 * time.Millisecond, 0, 0, 16 << 10, 0, 0, false},
		{"a fault meanwhile", 300 << 10, 2500 * time.Millisecond, 0, 0, 0, time.Second, 0, false},
		{"long after a fault", 300 << 10, 60 * time.Second, 0, 0, 0, time.Second, 0, true},
		{"frames passed on", 300 << 10, 2500 * time.Millisecond, 0, 0, 0, 0,
			20 * time.Millisecond, false},
		{"passed on and stuck", 300 << 10, 3 * time.Second, 0, 0, 0, 0,
			20 * time.Millisecond, true},
	} {
		p := Plan{Net: NetPlan{MTU: 1500, Delay: 40 * time.Millisecond},
			Hosts: []HostPlan{ours, ours}, Work: []WorkPlan{{Kind: Bulk, Client: 1}}}
		p.Hosts[1].Memory.Send, p.Hosts[0].Late = tt.send, tt.late
		if tt.fault > 0 {
			p.Faults = []FaultPlan{{Kind: Unplugged, For: tt.fault}}
		}
		j := &job{w: &world{plan: p}, plan: p.Work[0]}
		f := &flow{sent: tt.bytes, eof: true,
			pace: pace{begun: true, over: tt.took, harmEnd: tt.losses}}
		err := j.checkPace(&session{there: f, back: &flow{}, harmed: tt.dial})
		if slow := err != nil; slow != tt.slow {
			t.Errorf("%s: %v, at most %v", tt.name, err, j.mostTime(f, tt.losses-tt.dial))
		}
	}
}

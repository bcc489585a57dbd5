package sim

import (
	"syscall"
	"testing"
	"time"
)

// TestCutOffTold: the end of a stream that came too early is a fault of the run, but not where an
// outage has cut the connection off and the writer of the same end was told of the reset: netstack
// tells that once, and the reader has the end then, as on Linux.
func TestCutOffTold(t *testing.T) {
	for _, tt := range []struct {
		name   string
		outage time.Duration
		told   error // to the client's writer
		wrong  bool
	}{
		{"the writer was told", 25 * time.Second, syscall.ECONNRESET, false},
		{"nobody was told", 25 * time.Second, nil, true},
		{"no connection is cut off", time.Second, syscall.ECONNRESET, true},
	} {
		hosts := []HostPlan{{Kind: Ours, MaxOutage: 13 * time.Second}, {Kind: Ours}}
		p := Plan{Hosts: hosts, Faults: []FaultPlan{{Kind: Removed, For: tt.outage}},
			Work: []WorkPlan{{Kind: Bulk, Client: 1}}}
		j := &job{w: &world{plan: p, calm: time.Minute}, plan: p.Work[0]}
		there := &flow{sent: 50000, got: 20000, sendErr: tt.told, recvErr: syscall.ENETDOWN}
		back := &flow{sent: 32200, got: 19992, ended: true, eof: true}
		err := j.checkSession(&session{there: there, back: back, served: true, dialled: true})
		if wrong := err != nil; wrong != tt.wrong {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

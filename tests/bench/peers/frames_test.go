package main

import "testing"

func TestFramesOfAnInterface(t *testing.T) {
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:       0       1    0    0    0     0          0         0        0       2    0
  eth0: 6428970   42000    0    0    0     0          0         0  5318008   21000    0
`
	after := parseFrames(text, "eth0")
	if after != (frames{to: 21000, from: 42000}) {
		t.Errorf("frames %+v", after)
	}
	if got := after.since(frames{to: 1000, from: 2000}); got != (frames{to: 20000, from: 40000}) {
		t.Errorf("since: %+v", got)
	}
	if got := parseFrames(text, "eth1"); got != (frames{}) {
		t.Errorf("an interface that is not there: %+v", got)
	}
}

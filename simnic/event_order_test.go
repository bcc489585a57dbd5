package simnic

import (
	"slices"
	"testing"
)

// TestEventOrder: an event comes to subscribers in the order in which they have subscribed, so that
// runs of hosts with several processes on a NIC repeat.
func TestEventOrder(t *testing.T) {
	n, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var told []int
	for i := range 20 {
		defer n.Subscribe(func(Event) { told = append(told, i) })()
	}
	n.SetLink(false)
	if len(told) != 20 || !slices.IsSorted(told) {
		t.Errorf("subscribers were told in the order %v", told)
	}
}

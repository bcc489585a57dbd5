package rdma

import "testing"

// TestDropReasons requires that each reason has a sentence and a counter, and that RxDrops yields
// every frame that is lost, once.
func TestDropReasons(t *testing.T) {
	var s Stats
	for why := range dropReasons {
		if dropReasons[why].sentence == "" {
			t.Errorf("reason %d has no sentence", why)
		}
		*dropReasons[why].counter(&s) += 1 << why
	}
	sum, names := s.RxSteered+s.RxACKsKept, map[string]bool{}
	for name, n := range s.RxDrops() {
		if names[name] {
			t.Errorf("%s comes twice", name)
		}
		names[name] = true
		sum += n
	}
	if want := uint64(1<<len(dropReasons) - 1); sum != want {
		t.Errorf("RxDrops, RxSteered and RxACKsKept are %b, want %b", sum, want)
	}
}

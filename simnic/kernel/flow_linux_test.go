package kernel

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// A sniffer rule of a client gets copies of frames in both directions, on every release, whatever
// conditions it names.
func TestSniffer(t *testing.T) {
	for _, release := range []Release{Linux54, Linux612, Linux72} {
		a, b := newClient(t, simnic.Config{Seed: 1}, Config{Release: release}),
			newClient(t, simnic.Config{Seed: 2}, Config{Release: release})
		connect(t, a, b)
		sender := a.sender()
		for name, c := range map[string]*client{"sent": a, "received": b} {
			r := c.receiver(nil)
			if err := r.flow.Close(); err != nil {
				t.Fatal(err)
			}
			f := must(r.rss.CreateFlow(uverbs.FlowAttr{Type: uverbs.FlowSniffer,
				Specs: []uverbs.FlowSpec{uverbs.EthMatch{Dst: [6]byte{4},
					DstMask: uverbs.ExactMAC}.Spec(), uverbs.Tag(7)}}))(t)
			sender.send()
			e := r.cq.next()
			if e == nil || e.ByteCount() != 100 || e.FlowTag() != 0 ||
				!bytes.Equal(r.frames.Slice(0, 100), sender.frame()) {
				t.Errorf("release %d, %s: %v", release, name, e)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if sender.send(); r.cq.next() != nil {
				t.Errorf("release %d, %s: a frame after the rule is gone", release, name)
			}
		}
	}
}

package card_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// faultyKernel is a kernel that does one thing otherwise.
type faultyKernel struct {
	uverbs.Kernel
	ioctl func(buf []byte, pass func([]byte) error) error
}

func (k *faultyKernel) Ioctl(buf []byte) error { return k.ioctl(buf, k.Kernel.Ioctl) }

// otherwise has the rig's card opened through a faulty kernel.
func (r *rig) otherwise(ioctl func(buf []byte, pass func([]byte) error) error) {
	open := r.cfg.NIC.Model.Kernel
	r.cfg.NIC.Model.Kernel = func() (uverbs.Kernel, error) {
		k, err := open()
		return &faultyKernel{k, ioctl}, err
	}
}

// Frames that the card has sent, and received, when the checks up to the counters are done: one
// each, and 70 around the rings; and deliveries of the broadcast that tries an early record.
const (
	wentAround = 71
	tried      = 2
)

// brokenCase breaks the card, or what is around it, so that a check fails and says so.
type brokenCase struct {
	name, check, saw string
	spoil            func(*testing.T, *rig)
}

func brokenCases() []brokenCase {
	return []brokenCase{
		{"no privilege", "open", "CAP_NET_RAW", func(_ *testing.T, r *rig) {
			r.cfg.NIC.Model.Kernel = kernel.New(r.nic, kernel.Config{NoNetRaw: true}).OpenNode
		}},
		{"completions lost", "first send", "no completion came in", fault(
			simnic.QueueFault{Kind: simnic.FaultLoseCompletion})},
		{"doorbells lost", "first send", "no completion came in", fault(
			simnic.QueueFault{Kind: simnic.FaultLoseDoorbell})},
		{"sends fail", "first send", "the completion is no success", fault(
			simnic.QueueFault{Kind: simnic.FaultSendError, Syndrome: 4})},
		{"nothing received", "receive start", "did not come in", fault(
			simnic.QueueFault{Kind: simnic.FaultStarve})},
		{"wrong count", "completion counters", "neither the count", fault(
			simnic.QueueFault{Kind: simnic.FaultWrongCounter, Skip: 9})},
		{"record too early", "doorbell record", "the record said 5", func(_ *testing.T, r *rig) {
			r.otherwise(func(buf []byte, pass func([]byte) error) error {
				err := pass(buf)
				if card.Command(buf) == uverbs.ExCmdCreateWQ {
					err = errors.Join(err, card.SpoilRecord(buf))
				}
				return err
			})
		}},
		{"no copy for us", "broadcast copy", "no copy of it came to us", fault(
			simnic.QueueFault{Kind: simnic.FaultStarve, Skip: wentAround + tried})},
		{"no copy for Linux", "broadcast copy", "not to Linux", func(_ *testing.T, r *rig) {
			r.linux.Wire = wire.WithFaults(r.linux.Wire, wire.FaultConfig{Drop: 1})
		}},
		{"Linux mute", "broadcast copy", "was not answered", func(_ *testing.T, r *rig) {
			r.linux.mute = true
		}},
		{"completion lost in a burst", "compression", "of 32 frames came in", fault(
			simnic.QueueFault{Kind: simnic.FaultLoseCompletion, Skip: 3 * wentAround, Count: 1})},
		{"wrong rate", "time stamps", "stamps of a clock of 500000 kHz",
			func(_ *testing.T, r *rig) {
				r.otherwise(func(buf []byte, pass func([]byte) error) error {
					err := pass(buf)
					if card.Command(buf) == uverbs.ExCmdQueryDevice {
						err = errors.Join(err, card.SpoilClock(buf, 500000))
					}
					return err
				})
			}},
		{"queue stays broken", "send error recovery", "after the queue was replaced", fault(
			simnic.QueueFault{Kind: simnic.FaultSendError, Skip: wentAround + 1, Syndrome: 2})},
		{"not registered", "e-switch registration", "is not in the netdev's unicast list",
			func(_ *testing.T, r *rig) { r.list.err = unix.EPERM }},
		{"nobody pulls", "cable", "the link stayed up", func(_ *testing.T, r *rig) {
			r.cfg.Ask, r.cfg.PullPatience = func(string) {}, 50*time.Millisecond
		}},
		{"not plugged in again", "cable", "did not come back", func(_ *testing.T, r *rig) {
			r.cfg.Ask = func(string) { r.nic.SetLink(false) }
			r.cfg.PullPatience = 50 * time.Millisecond
		}},
		{"rule stays", "nothing left behind", "closing the device", func(_ *testing.T, r *rig) {
			r.otherwise(func(buf []byte, pass func([]byte) error) error {
				if card.Command(buf) == uverbs.ExCmdDestroyFlow {
					return unix.EBUSY
				}
				return pass(buf)
			})
		}},
		{"descriptor stays", "nothing left behind", "1 file descriptors more than before",
			func(t *testing.T, r *rig) {
				open := r.cfg.NIC.Model.Kernel
				r.cfg.NIC.Model.Kernel = func() (uverbs.Kernel, error) {
					f, err := os.Open("/dev/null")
					t.Cleanup(func() { f.Close() })
					k, openErr := open()
					return k, errors.Join(err, openErr)
				}
			}},
	}
}

// TestEachCheckFails wants the check's sentence, and that no check before it fails.
func TestEachCheckFails(t *testing.T) {
	for _, tt := range brokenCases() {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, simnic.Config{})
			r.pulls()
			r.cfg.Patience = 200 * time.Millisecond
			tt.spoil(t, r)
			report := card.Run(t.Context(), r.cfg)
			got := line(t, report, tt.check)
			if got.State != doctor.Failed || !strings.Contains(got.Saw, tt.saw) || got.Do == "" {
				t.Errorf("%+v\n%s", got, text(t, report))
			}
			for _, before := range report.Results {
				if before.Check == tt.check {
					break
				}
				if before.State == doctor.Failed {
					t.Errorf("%q failed before: %s", before.Check, before.Saw)
				}
			}
			r.nothingLeft(t)
		})
	}
}

// TestBehindSwitch wants the checks to show what an e-switch drops.
func TestBehindSwitch(t *testing.T) {
	for _, tt := range []struct {
		name, check, saw string
		fn               simnic.Function
		err              error // of the netdev's list
	}{
		{"not registered", "receive start", "a frame for 02:00:00:00:00:02 was sent and did not",
			simnic.Function{Kind: simnic.VF}, unix.EPERM},
		{"spoof check", "first send", "the frame did not come out of the port",
			simnic.Function{Kind: simnic.VF, SpoofCheck: true}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, simnic.Config{Function: tt.fn})
			r.list.err, r.cfg.Patience = tt.err, 100*time.Millisecond
			report := card.Run(t.Context(), r.cfg)
			if got := line(t, report, tt.check); got.State != doctor.Failed ||
				!strings.Contains(got.Saw, tt.saw) {
				t.Errorf("%+v", got)
			}
			r.nothingLeft(t)
		})
	}
}

// fault has the card do something wrong, by name.
func fault(f simnic.QueueFault) func(*testing.T, *rig) {
	return func(_ *testing.T, r *rig) { r.nic.Inject(f) }
}

// TestEveryCheckIsBroken wants no check without a case above.
func TestEveryCheckIsBroken(t *testing.T) {
	broken := map[string]bool{}
	for _, c := range brokenCases() {
		broken[c.check] = true
	}
	for _, r := range card.Run(t.Context(), newRig(t, simnic.Config{}).cfg).Results {
		if !broken[r.Check] {
			t.Errorf("nothing shows that %q can fail", r.Check)
		}
	}
}

// TestSkipsWithoutPeers tries a card to which nobody can send.
func TestSkipsWithoutPeers(t *testing.T) {
	r := newRig(t, simnic.Config{})
	cfg := r.cfg
	cfg.Wire, cfg.Netdev, cfg.UnicastList = nil, nil, nil
	report := card.Run(t.Context(), cfg)
	if report.Count(doctor.Failed) > 0 || report.Count(doctor.Skipped) != 8 {
		t.Errorf("%s", text(t, report))
	}
}

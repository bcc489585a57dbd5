package card_test

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

var (
	netdevMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	ourMAC    = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x02}
	linuxIP   = netip.MustParseAddr("192.0.2.1")
)

// linux is a host at the end of a wire, the port's own or another: it answers ARP for its address,
// from bytes.
type linux struct {
	wire.Wire
	ip   netip.Addr
	mute bool // it does not answer
}

// Start has ARP requests answered before anybody else sees them.
func (l *linux) Start(recv func([]frame.Frame)) error {
	return l.Wire.Start(func(frames []frame.Frame) {
		for _, f := range frames {
			if b := f.Data; len(b) >= 42 && b[12] == 0x08 && b[13] == 0x06 && b[21] == 1 &&
				bytes.Equal(b[38:42], l.ip.AsSlice()) && !l.mute {
				l.Wire.Send([]frame.Frame{{Data: arpReply(b, l.ip)}})
			}
		}
		recv(frames)
	})
}

// arpReply answers an ARP request (RFC 826).
func arpReply(ask []byte, ip netip.Addr) []byte {
	f := make([]byte, 60)
	copy(f, ask[6:12])
	copy(f[6:], netdevMAC)
	copy(f[12:], []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2})
	copy(f[22:], netdevMAC)
	copy(f[28:], ip.AsSlice())
	copy(f[32:], ask[22:32])
	return f
}

// list is the addresses that the netdev of the model takes, as its kernel keeps it.
type list struct {
	*kernel.PacketSocket
	macs []net.HardwareAddr
	err  error // of Add
}

func (l *list) Add(mac net.HardwareAddr) error {
	if l.err != nil {
		return l.err
	}
	l.macs = append(l.macs, mac)
	return l.PacketSocket.Add(mac)
}

// rig is a card of the model with somebody at both sides of its port.
type rig struct {
	nic   *simnic.NIC
	linux *linux
	list  *list
	cfg   card.Config
}

// newRig makes one; opener is what opens its node, the model's own if nil.
func newRig(t *testing.T, cfg simnic.Config) *rig {
	t.Helper()
	cfg.MAC = netdevMAC
	nic, err := simnic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	near, far := wire.Pair()
	nearNetdev, farNetdev := wire.Pair()
	if err := nic.ConnectWire(near); err != nil {
		t.Fatal(err)
	}
	if err := nic.ConnectNetdev(nearNetdev); err != nil {
		t.Fatal(err)
	}
	r := &rig{nic: nic, linux: &linux{Wire: farNetdev, ip: linuxIP}, list: &list{}}
	host := kernel.New(nic, kernel.Config{})
	r.cfg = card.Config{
		NIC: dv.Config{NIC: dv.NIC{
			MAC: ourMAC,
			Model: dv.Model{
				Kernel: host.OpenNode,
				Facts: dv.PortFacts{
					Name: nic.Config().Name, Netdev: nic.Config().Netdev, MAC: netdevMAC},
			},
		}, Addresses: func() (l dv.AddressList, err error) {
			r.list.PacketSocket, err = host.OpenPacketSocket()
			return r.list, err
		}},
		OpenNode: host.OpenNode,
		Wire:     far, Netdev: r.linux, NetdevMAC: netdevMAC, LinuxAddress: linuxIP,
		UnicastList: func() ([]net.HardwareAddr, error) {
			return r.list.macs, nil
		},
		Environment: []doctor.Fact{{Name: "kernel", Value: "the model's"}},
		Patience:    2 * time.Second,
	}
	t.Cleanup(func() {
		if err := nic.Close(); err != nil {
			t.Error(err)
		}
		if v := nic.Violations(); len(v) > 0 {
			t.Errorf("the card noticed: %s", strings.Join(v, "\n"))
		}
	})
	return r
}

// pulls has the link go down and up as the user is asked.
func (r *rig) pulls() {
	r.cfg.Ask = func(what string) { r.nic.SetLink(strings.HasPrefix(what, "plug")) }
}

// line is the result of one check.
func line(t *testing.T, report doctor.Report, check string) doctor.Result {
	t.Helper()
	for _, r := range report.Results {
		if r.Check == check {
			return r
		}
	}
	t.Fatalf("no check %q", check)
	return doctor.Result{}
}

// text is the report as it is printed.
func text(t *testing.T, report doctor.Report) string {
	t.Helper()
	var b strings.Builder
	if err := report.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSound runs all checks on cards of the model that have nothing wrong.
func TestSound(t *testing.T) {
	small := simnic.DefaultCaps()
	small.MinInline = simnic.InlineL2
	plain := simnic.DefaultCaps()
	plain.Compression = false
	realTime := simnic.DefaultCaps()
	realTime.Timestamps = simnic.StampsRealTime
	for _, tt := range []struct {
		name    string
		cfg     simnic.Config
		skipped int
		facts   []string
	}{
		{"as usual", simnic.Config{}, 0, []string{"is a counter that runs on",
			"before it is taken, too"}},
		{"record before ready ignored", simnic.Config{RecordAfterReady: true}, 0,
			[]string{"before it is ignored until it is written again"}},
		{"ring index", simnic.Config{RingIndex: true}, 0, []string{"is the place in the ring"}},
		{"real time", simnic.Config{Caps: realTime}, 0, []string{"stamps of real time: "}},
		{"headers inline", simnic.Config{Caps: small}, 0, nil},
		{"no compression", simnic.Config{Caps: plain}, 1,
			[]string{"no compression of completions"}},
		{"jumbo frames", simnic.Config{MTU: 9000}, 0, nil},
		{"SR-IOV on", simnic.Config{Function: simnic.Function{Kind: simnic.SwitchPF}}, 0, nil},
		{"VF", simnic.Config{Function: simnic.Function{Kind: simnic.VF}}, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.cfg)
			r.pulls()
			before := openFiles(t)
			start := time.Now()
			report := card.Run(t.Context(), r.cfg)
			said := text(t, report)
			if report.Count(doctor.Failed) > 0 || report.Count(doctor.Skipped) != tt.skipped ||
				len(report.Results) != 12 {
				t.Errorf("%s", said)
			}
			for _, want := range tt.facts {
				if !strings.Contains(said, want) {
					t.Errorf("not said: %q\n%s", want, said)
				}
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
			r.nothingLeft(t)
			if after := openFiles(t); after != before {
				t.Errorf("%d descriptors open, %d before", after, before)
			}
		})
	}
}

// nothingLeft wants the card to have no object that the run made.
func (r *rig) nothingLeft(t *testing.T) {
	t.Helper()
	if o := r.nic.Objects(); o != (simnic.Objects{}) {
		t.Errorf("left on the card: %+v", o)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestBytes wants the bytes of descriptors and completions in the report.
func TestBytes(t *testing.T) {
	report := card.Run(t.Context(), newRig(t, simnic.Config{}).cfg)
	for _, tt := range []struct{ check, fact, want string }{
		{"first send", "WQE", "0180 c200000e"}, // the beginning of the frame, inline
		{"first send", "WQE, control segment", "ce=0x2"},
		{"first send", "CQE", "00000001"},    // our user index
		{"receive start", "CQE", "0000003c"}, // 60 bytes
		{"send error recovery", "CQE, read", "local protection"},
		{"send error recovery", "WQE, data segment", "lkey="},
	} {
		found := false
		for _, f := range line(t, report, tt.check).Facts {
			found = found || f.Name == tt.fact && strings.Contains(f.Value, tt.want)
		}
		if !found {
			t.Errorf("%s: no %q with %q in\n%s", tt.check, tt.fact, tt.want, text(t, report))
		}
	}
}

// TestByLoopback has frames come from the netdev of the same port, as on a card in a machine.
func TestByLoopback(t *testing.T) {
	r := newRig(t, simnic.Config{})
	r.cfg.Wire = nil
	report := card.Run(t.Context(), r.cfg)
	said := text(t, report)
	if report.Count(doctor.Failed) > 0 || report.Count(doctor.Skipped) != 1 {
		t.Errorf("%s", said)
	}
	for _, want := range []string{"by loopback", "RawPacketRSS=true", "DEVX ",
		"Linux answered ARP for 192.0.2.1"} {
		if !strings.Contains(said, want) {
			t.Errorf("not said: %q\n%s", want, said)
		}
	}
	r.nothingLeft(t)
}

// TestByNeighbour has nothing come by loopback, and the gateway answer ARP.
func TestByNeighbour(t *testing.T) {
	r := newRig(t, simnic.Config{})
	router := &linux{Wire: r.cfg.Wire, ip: netip.MustParseAddr("192.0.2.254")}
	if err := router.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	r.cfg.Wire, r.cfg.OpenNode, r.cfg.Patience = nil, nil, 100*time.Millisecond
	r.cfg.Neighbours = []netip.Addr{netip.MustParseAddr("192.0.2.253"), router.ip}
	report := card.Run(t.Context(), r.cfg)
	if got := line(t, report, "receive start"); got.State != doctor.OK ||
		!strings.Contains(got.Saw, "the ARP answer of 192.0.2.254 came in") {
		t.Errorf("%+v", got)
	}
	if report.Count(doctor.Failed) > 0 || report.Count(doctor.Skipped) != 5 {
		t.Errorf("%s", text(t, report))
	}
}

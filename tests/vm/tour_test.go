//go:build linux

package vm

import (
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Settings of the netdev that its user can change, under load: ethtool's tour.

// setting is a call of ethtool that changes something. A call with show has the wanted texts.
type setting struct {
	set   string // option and arguments, without the interface
	show  string // option of the call that shows it
	want  []string
	check func(t *testing.T, l *load) // after traffic has gone on
}

var tour = []setting{
	{"-L combined 1", "-l", []string{"Combined: 1"}, onQueue1(false)},
	{"-L combined 2", "-l", []string{"Combined: 2"}, nil},
	{"-G rx 512 tx 256", "-g", []string{"RX: 512", "TX: 256"}, nil},
	{"-G rx 1024 tx 1024", "-g", []string{"RX: 1024", "TX: 1024"}, nil},

	{"-X hfunc xor", "-x", []string{"xor: on", "toeplitz: off"}, nil},
	{"-X hfunc toeplitz", "-x", []string{"xor: off", "toeplitz: on"}, nil},
	{"-X hkey " + hashKey, "-x", []string{hashKey}, nil},
	{"-X equal 1", "-x", []string{"0: 0 0 0 0 0 0 0 0 8: 0 0 0 0"}, onQueue1(false)},
	{"-N flow-type tcp4 dst-port 5201 action 1 loc 0", "-n",
		[]string{"Total 1 rules", "Action: Direct to queue 1"}, onQueue1(true)},
	{"-N delete 0", "-n", []string{"Total 0 rules"}, onQueue1(false)},
	{"-X weight 0 1", "-x", []string{"0: 1 1 1 1 1 1 1 1 8: 1 1 1 1"}, onQueue1(true)},
	{"-X default", "-x", []string{"0: 0 1 0 1 0 1 0 1"}, nil},

	{"-K tso off", "-k", []string{"tcp-segmentation-offload: off"}, idle(lso)},
	{"-K tx off", "-k", []string{"tx-checksumming: off"}, idle(checksums)},
	{"-K tx on tso on", "-k", []string{"tx-checksumming: on", "tcp-segmentation-offload: on"},
		busy(lso)},
	{"-K rx off", "-k", []string{"rx-checksumming: off"}, nil},
	{"-K rx on", "-k", []string{"rx-checksumming: on"}, nil},
	{"-K rxvlan off txvlan off", "-k", []string{"rx-vlan-offload: off", "tx-vlan-offload: off"},
		nil},
	{"-K rxvlan on txvlan on", "-k", []string{"rx-vlan-offload: on", "tx-vlan-offload: on"}, nil},
	{"-K rxhash off", "-k", []string{"receive-hashing: off"}, nil},
	{"-K rxhash on", "-k", []string{"receive-hashing: on"}, nil},
	{"-K ntuple on", "-k", []string{"ntuple-filters: on"}, nil},
	{"-K ntuple off", "-k", []string{"ntuple-filters: off", "rx-gro-hw: off [fixed]"}, nil},
	{"-K gro off", "-k", []string{"generic-receive-offload: off"}, nil},
	{"-K gro on", "-k", []string{"generic-receive-offload: on"}, nil},

	{"--set-priv-flags rx_striding_rq off", "--show-priv-flags", []string{"rx_striding_rq : off"},
		nil},
	{"--set-priv-flags rx_striding_rq on", "--show-priv-flags", []string{"rx_striding_rq : on"},
		nil},
	{"-K lro on", "-k", []string{"large-receive-offload: on"}, busy(merged)},
	{"-K lro off", "-k", []string{"large-receive-offload: off"}, idle(merged)},
	{"--set-priv-flags rx_cqe_compress on", "--show-priv-flags", []string{"rx_cqe_compress : on"},
		nil},
	{"--set-priv-flags rx_cqe_compress off", "--show-priv-flags",
		[]string{"rx_cqe_compress : off"}, nil},

	{"-C adaptive-rx off adaptive-tx off rx-usecs 16 rx-frames 32 tx-usecs 24 tx-frames 8", "-c",
		[]string{"Adaptive RX: off TX: off", "rx-usecs: 16", "rx-frames: 32", "tx-usecs: 24",
			"tx-frames: 8"}, nil},
	{"-C cqe-mode-rx on cqe-mode-tx on", "-c", []string{"CQE mode RX: on TX: on"}, nil},
	{"-C cqe-mode-rx off cqe-mode-tx off", "-c", []string{"CQE mode RX: off TX: off"}, nil},
	{"-C adaptive-rx on adaptive-tx on", "-c", []string{"Adaptive RX: on TX: on"}, nil},

	{"--set-fec encoding baser", "--show-fec", []string{"Active FEC encoding: BaseR"}, nil},
	{"--set-fec encoding auto", "--show-fec", []string{"Active FEC encoding: RS"}, nil},
}

// hashKey is a key of the Toeplitz hash: 40 bytes.
var hashKey = strings.TrimSuffix(strings.Repeat("5a:a5:0f:f0:", 10), ":")

// testTour makes each change while TCP goes both ways. Traffic must go on after each, with all
// bytes unchanged.
func testTour(t *testing.T, w *world) {
	w.served(t)
	w.run(t, "ethtool", "--set-priv-flags", "eth0", "rx_striding_rq", "on")
	l := w.loaded(t)
	l.flows(t)
	for _, s := range tour {
		args := strings.Fields(s.set)
		w.run(t, append([]string{"ethtool", args[0], "eth0"}, args[1:]...)...)
		_, now, found := strings.Cut(w.run(t, "ethtool", s.show, "eth0"), "Current hardware")
		if !found {
			now = w.run(t, "ethtool", s.show, "eth0")
		}
		contains(t, now, s.want...)
		l.flows(t)
		if s.check != nil {
			s.check(t, l)
		}
		w.noComplaints(t)
		if t.Failed() {
			t.Fatalf("after ethtool %s", s.set)
		}
	}
	w.selfTest(t)
	contains(t, w.run(t, "ethtool", "-m", "eth0"), "Vendor name : RDMA-NETSTACK")
	w.countsPort(t, l)
}

// selfTests is how often the self test is tried: its loopback packet must return within 200 ms,
// which an emulated processor on a busy machine can miss.
const selfTests = 5

// selfTest runs the driver's self test: link, speed, health and a packet to itself.
func (w *world) selfTest(t *testing.T) {
	t.Helper()
	var out string
	for range selfTests {
		if out, _ = w.try(t, "ethtool", "-t", "eth0"); strings.Contains(out, "PASS") {
			contains(t, out, "Link Test 0", "Speed Test 0", "Health Test 0", "Loopback Test 0")
			return
		}
	}
	t.Errorf("the self test failed %d times:\n%s", selfTests, out)
}

// countsPort compares ethtool's counters of the port with those of the model.
func (w *world) countsPort(t *testing.T, l *load) {
	t.Helper()
	for name, of := range map[string]func(simnic.Counters) uint64{
		"rx_packets_phy": func(c simnic.Counters) uint64 { return c.Wire.RxPackets },
		"tx_packets_phy": func(c simnic.Counters) uint64 { return c.Wire.TxPackets },
		"rx_bytes_phy": func(c simnic.Counters) uint64 {
			return c.Wire.RxBytes + 4*c.Wire.RxPackets
		},
		"rx_out_of_buffer": func(c simnic.Counters) uint64 {
			return c.Drops.OutOfBuffer
		},
	} {
		least := of(w.nic.Counters())
		got := w.statistic(t, name)
		if most := of(w.nic.Counters()); name != "rx_out_of_buffer" && got < least || got > most {
			t.Errorf("%s is %d, the model has %d to %d", name, got, least, most)
		}
	}
	before := w.statistic(t, "rx_packets")
	l.flows(t)
	if n := w.statistic(t, "rx_packets") - before; n < step/1500 {
		t.Errorf("rx_packets grew by %d", n)
	}
}

// statistic is one of ethtool's counters.
func (w *world) statistic(t *testing.T, name string) uint64 {
	t.Helper()
	for line := range strings.Lines(w.run(t, "ethtool", "-S", "eth0")) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), ": "); k == name {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("ethtool -S has no %s", name)
	return 0
}

// onQueue1 checks whether the netdev's second receive queue gets packets.
func onQueue1(want bool) func(*testing.T, *load) {
	return func(t *testing.T, l *load) {
		t.Helper()
		before := l.w.statistic(t, "rx1_packets")
		l.flows(t)
		if n := l.w.statistic(t, "rx1_packets") - before; n > 0 != want {
			t.Errorf("the second queue received %d packets", n)
		}
	}
}

// Counters of the model that show whether an offload is used.
func lso(c simnic.Counters) uint64       { return c.LSOWQEs }
func checksums(c simnic.Counters) uint64 { return c.ChecksumWQEs }
func merged(c simnic.Counters) uint64    { return c.LROPackets }

// idle checks that a counter does not grow while traffic goes on, and busy that it does.
func idle(of func(simnic.Counters) uint64) func(*testing.T, *load) { return grows(of, 0) }
func busy(of func(simnic.Counters) uint64) func(*testing.T, *load) { return grows(of, 1) }

func grows(of func(simnic.Counters) uint64, least uint64) func(*testing.T, *load) {
	return func(t *testing.T, l *load) {
		t.Helper()
		before := of(l.w.nic.Counters())
		l.flows(t)
		if n := of(l.w.nic.Counters()) - before; n < least || least == 0 && n > 0 {
			t.Errorf("the model counts %d", n)
		}
	}
}

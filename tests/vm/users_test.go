//go:build linux

package vm

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Other users of the NIC: verbs that our driver does not need, and the netdev's tools.

// testOtherVerbs runs testdata/verbs.c in the guest.
func testOtherVerbs(t *testing.T, w *world) {
	need.That(t, "compiler", w.verbsErr)
	for _, name := range []string{"rereg", "resize", "pairs", "srq"} {
		t.Run(name, func(t *testing.T) { contains(t, w.run(t, "/bin/verbs", name), "ok") })
	}
	t.Run("count", func(t *testing.T) { testCounting(t, w) })
	t.Run("sniff", func(t *testing.T) { testSniffing(t, w) })
}

// verbs starts a part of verbs.c that reports when it is ready.
func (w *world) verbs(t *testing.T, name, ready string) (job int) {
	t.Helper()
	job = w.start(t, "/bin/verbs", name)
	eventually(t, func() string { return ready + ": " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), ready) })
	return job
}

// testCounting sends frames past a flow counter whose count a program waits for.
func testCounting(t *testing.T, w *world) {
	job := w.verbs(t, "count", "counting")
	w.frames(t, net.HardwareAddr{2, 0xaa, 0, 0, 0, 0x55}, strays)
	r, err := w.vm.Do(rig.Request{Op: "wait", Job: job, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("exit %d, %v: %s", r.Code, err, r.Output)
	}
}

// frames sends the given number of frames to an address, from outside.
func (w *world) frames(t *testing.T, to net.HardwareAddr, n int) {
	t.Helper()
	err := w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		for range n {
			if err := port.Send(probe.EtherFrame(to, port.MAC, probe.Experimental,
				make([]byte, 100))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testSniffing pings while a sniffer runs, which must see the netdev's requests and the answers, as
// a packet capture on the RDMA device does.
func testSniffing(t *testing.T, w *world) {
	job := w.verbs(t, "sniff", "sniffing")
	w.pingsOutside(t, outside4.Addr())
	local, far := fmt.Sprintf("%x", netdev4.Addr().AsSlice()), fmt.Sprintf("%x",
		outside4.Addr().AsSlice())
	eventually(t, func() string { return "both directions: " + w.output(t, job) }, func() bool {
		out := w.output(t, job)
		return strings.Contains(out, local+far) && strings.Contains(out, far+local)
	})
}

// testEthtool reads what a user of the netdev reads first, and changes the settings that can be
// changed.
func testEthtool(t *testing.T, w *world) {
	contains(t, w.run(t, "ethtool", "--show-fec", "eth0"), "Active FEC encoding: RS")
	w.run(t, "ethtool", "--set-fec", "eth0", "encoding", "baser")
	contains(t, w.run(t, "ethtool", "--show-fec", "eth0"), "Active FEC encoding: BaseR")
	w.run(t, "ethtool", "--set-fec", "eth0", "encoding", "auto")
	contains(t, w.run(t, "ethtool", "-m", "eth0"), "0x03 (SFP)", "Vendor name : RDMA-NETSTACK")
	contains(t, w.run(t, "devlink", "dev", "info"), w.nic.Card().FirmwareVersion())
	w.run(t, "ethtool", "-X", "eth0", "hfunc", "xor")
	contains(t, w.run(t, "ethtool", "-x", "eth0"), "xor: on")
	w.pingsOutside(t, outside4.Addr())
	w.run(t, "ethtool", "-X", "eth0", "hfunc", "toeplitz")
	w.run(t, "ethtool", "-C", "eth0", "adaptive-rx", "off", "rx-usecs", "4", "rx-frames", "8")
	// On by default for a card with few strides per WQE (ext_stride_num_range) only: others cannot
	// have XDP with it (mlx5e_rx_mpwqe_is_linear_skb in linux mlx5/core/en/params.c).
	flags := strings.Join(strings.Fields(w.run(t, "ethtool", "--show-priv-flags", "eth0")), " ")
	w.run(t, "ethtool", "--set-priv-flags", "eth0", "rx_striding_rq", "on")
	contains(t, w.run(t, "ethtool", "--show-priv-flags", "eth0"), "rx_striding_rq : on")
	contains(t, w.run(t, "ethtool", "-S", "eth0"), "rx_out_of_buffer:")
	w.pingsOutside(t, outside4.Addr())
	if strings.Contains(flags, "rx_striding_rq : off") {
		w.run(t, "ethtool", "--set-priv-flags", "eth0", "rx_striding_rq", "off")
		w.pingsOutside(t, outside4.Addr())
	}
}

//go:build linux

package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// TestUsers has DPDK, which was not written for the model, use it under one kernel. It is not a
// part of make test.
func TestUsers(t *testing.T) {
	p, version := gatherForUsers(t, "2 to 10 minutes")
	p.memory, p.cmdline, p.finished = 1280, "hugepages=192", true
	card := simnic.Config{Card: os.Getenv("CARD")}
	w := boot(t, t.Context(), p, version, card, pcie.Config{})
	t.Run("probe", func(t *testing.T) { testProbe(t, w) })
	for _, m := range dpdkModes {
		t.Run("testpmd/"+m.name, func(t *testing.T) {
			m.run(t, w)
			w.noComplaints(t)
			w.cleanLog(t)
		})
	}
	t.Run("testpmd/starts", func(t *testing.T) { testStarts(t, w) })
	for _, r := range testRules {
		t.Run("testpmd/rules/"+r.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("the guest's kernel says:\n%s",
						w.must(t, rig.Request{Op: "dmesg"}).Output)
				}
			}()
			r.run(t, w)
			w.noComplaints(t)
			w.cleanLog(t)
		})
	}
}

// cleanLog fails the test if the guest's kernel has logged a warning about its own state.
func (w *world) cleanLog(t *testing.T) {
	t.Helper()
	for _, line := range w.warnings(t) {
		t.Errorf("the guest's kernel says: %s", line)
	}
}

// warnings are the lines of the guest's log in which its kernel warns about its own state.
func (w *world) warnings(t *testing.T) (lines []string) {
	t.Helper()
	for line := range strings.Lines(w.must(t, rig.Request{Op: "dmesg"}).Output) {
		if strings.Contains(line, "WARNING:") || strings.Contains(line, "BUG:") ||
			strings.Contains(line, "Call Trace") {
			lines = append(lines, line)
		}
	}
	return lines
}

// dpdkMode is one way to run testpmd.
type dpdkMode struct {
	name    string
	devargs string // of the driver
	args    string // of testpmd
	size    int    // bytes of a frame
	verbs   bool   // the queues are made by verbs, not by DEVX
}

var dpdkModes = []dpdkMode{
	{"default", "", "", 200, false},
	{"vector off", "rx_vec_en=0", "", 200, false},
	{"striding", "mprq_en=1,rxqs_min_mprq=1", "", 200, false},
	{"inline", "txq_inline_max=256,txqs_min_inline=0", "", 200, false},
	{"no inline", "txq_inline_max=0", "", 200, false},
	{"no compression", "rxq_cqe_comp_en=0", "", 200, false},
	{"4 queues", "", "--rxq=4 --txq=4", 200, false},
	{"multi-segment", "", "--mbuf-size=512 --enable-scatter --tx-offloads=0x8000", 1400, false},
	{"no multi-packet", "txq_mpw_en=0", "", 200, false},
	{"verbs", "dv_flow_en=0", "", 200, true},
	{"verbs, 4 queues", "dv_flow_en=0", "--rxq=4 --txq=4", 200, true},
	{"verbs, striding", "dv_flow_en=0,mprq_en=1,rxqs_min_mprq=1", "", 200, true},
}

// burst is the number of frames sent at once, and rounds the number of bursts, with testpmd.
const burst, rounds = 16, 8

// run has testpmd send every frame back, with its addresses swapped.
func (m *dpdkMode) run(t *testing.T, w *world) {
	memories := w.fn.Commands()["CREATE_UMEM"].Done
	argv := append(w.testpmdArgv(m.devargs), "--forward-mode=macswap", "--auto-start",
		"--stats-period=1", "--total-num-mbufs=32768")
	job := w.start(t, append(argv, strings.Fields(m.args)...)...)
	w.eventually(t, func() string { return "testpmd forwarding: " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), "Rx-pps") })
	// DPDK 25.11 registers memory for all send queues at once, however it makes them
	// (mlx5_dev_allocate_consec_tx_mem in drivers/net/mlx5/mlx5_trigger.c).
	if made := w.fn.Commands()["CREATE_UMEM"].Done - memories; (made <= 1) != m.verbs {
		t.Errorf("%d UMEMs for queues; by verbs: %v", made, m.verbs)
	}
	if err := w.swapped(w.netdevMAC(t), m.size); err != nil {
		t.Errorf("%v; testpmd:\n%s", err, w.output(t, job))
	}
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: 15, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("testpmd ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
}

// testpmdArgv is the command line of testpmd up to its own arguments.
func (w *world) testpmdArgv(devargs string) []string {
	return []string{"dpdk-testpmd", "-l", "0,1", "--in-memory", "--no-telemetry", "-m", "256",
		"-a", strings.TrimSuffix("0000:01:00.0,"+devargs, ","),
		"-d", w.tools.Plugin("librte_net_mlx5.so"),
		"-d", w.tools.Plugin("librte_mempool_ring.so"), "--"}
}

// netdevMAC is the address of the guest's netdev.
func (w *world) netdevMAC(t *testing.T) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(w.must(t,
		rig.Request{Op: "read", Path: "/sys/class/net/eth0/address"}).Output))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// swapped sends frames to an address and checks that each returns, unchanged except for its
// addresses.
func (w *world) swapped(mac net.HardwareAddr, size int) error {
	return w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		for round := range rounds {
			missing := map[string]bool{}
			for i := range burst {
				f := numbered(mac, port.MAC, size, uint32(round*burst+i))
				missing[string(f[12:])] = true
				if err := port.Send(f); err != nil {
					return err
				}
			}
			if err := collect(port, mac, missing); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		return nil
	})
}

// numbered is a frame with a number, and contents derived from the number.
func numbered(dst, src net.HardwareAddr, size int, n uint32) []byte {
	payload := bytes.Repeat([]byte{byte(n), byte(n >> 8), 0x5a}, size/3)
	binary.BigEndian.PutUint32(payload, n)
	return probe.EtherFrame(dst, src, probe.Experimental, payload)
}

// collect receives frames from an address until all have arrived.
func collect(port *lab.Port, from net.HardwareAddr, missing map[string]bool) error {
	buf := make([]byte, 2048)
	for deadline := time.Now().Add(patience); len(missing) > 0; {
		f, err := port.Recv(buf, deadline)
		if err != nil {
			return fmt.Errorf("%d frames did not come back: %w", len(missing), err)
		}
		if bytes.Equal(f[6:12], from) && bytes.Equal(f[:6], port.MAC) {
			if !missing[string(f[12:])] {
				return fmt.Errorf("a frame that was not sent, or came back before: % x", f)
			}
			delete(missing, string(f[12:]))
		}
	}
	return nil
}

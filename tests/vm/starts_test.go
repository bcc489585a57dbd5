//go:build linux

package vm

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// testStarts starts testpmd with queues by verbs STARTS times while frames for it come in without a
// pause: each must forward, and end when it is asked to. Of one that does not, it logs the stacks.
func testStarts(t *testing.T, w *world) {
	times, err := strconv.Atoi(os.Getenv("STARTS"))
	if times <= 0 {
		need.That(t, "starts", fmt.Errorf("STARTS=N has it start N times, half a minute each: %v",
			err))
	}
	w.must(t, rig.Request{Op: "write", Path: "/proc/sys/kernel/core_pattern", Argv: []string{
		coreFile}})
	f := w.sendsAllTheTime(t, w.netdevMAC(t))
	var kinds []dpdkMode
	for _, m := range dpdkModes {
		if m.verbs {
			kinds = append(kinds, m)
		}
	}
	failed := map[string]int{}
	for i := range times {
		m := &kinds[i%len(kinds)]
		begun := time.Now()
		if how := m.startsUnder(t, w, f); how != "" {
			failed[how]++
			t.Errorf("start %d, %s: %s", i, m.name, how)
		}
		t.Logf("start %d, %s: %v, %d frames sent so far, %d came back", i, m.name,
			time.Since(begun).Round(time.Second/10), f.sent.Load(), f.back.Load())
		if err := w.vm.Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d starts, failed: %v", times, failed)
	w.noComplaints(t)
	w.cleanLog(t)
}

// coreFile names where the guest's kernel leaves what a program had in memory when it failed.
const coreFile = "/tmp/core"

// returns counts how many frames have to come back of a testpmd that forwards.
const returns = 200

// startsUnder starts testpmd, awaits that frames come back, and ends it. It returns what went
// wrong, "" if nothing did.
func (m *dpdkMode) startsUnder(t *testing.T, w *world, f *flood) (how string) {
	t.Helper()
	argv := slices.Concat([]string{"/init", "confine", "-core"}, w.testpmdArgv(m.devargs),
		[]string{"--forward-mode=macswap", "--auto-start", "--stats-period=1",
			"--total-num-mbufs=32768"}, strings.Fields(m.args))
	job := w.start(t, argv...)
	back := f.back.Load()
	switch {
	case !within(patience, func() bool { return strings.Contains(w.output(t, job), "Rx-pps") }):
		how = "it did not start"
	case !within(patience, func() bool { return f.back.Load()-back >= returns }):
		how = fmt.Sprintf("%d of %d frames came back", f.back.Load()-back, f.sent.Load())
	}
	signal := unix.SIGTERM
	if how != "" {
		signal = unix.SIGABRT
	}
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: int(signal), Timeout: patience})
	if err != nil {
		how += "; it did not end"
		r, err = w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: int(unix.SIGABRT),
			Timeout: patience})
	}
	if r.Code != 0 || err != nil {
		how += fmt.Sprintf("; it ended with %d, %v", r.Code, err)
	}
	if how != "" {
		t.Logf("%s\n%s", lastLines(r.Output, programLines), w.stacks(t))
	}
	return strings.TrimPrefix(how, "; ")
}

// stacks returns where the threads of the program were that has left a core file behind, and
// removes the file.
func (w *world) stacks(t *testing.T) string {
	t.Helper()
	r, err := w.vm.Do(rig.Request{Op: "run", Timeout: 3 * patience, Argv: []string{"gdb", "-batch",
		"-nx", "-ex", "info threads", "-ex", "thread apply all bt 24", "-ex", "info registers",
		"-ex", "x/12i $pc-24", "-ex", "info sharedlibrary", "/bin/dpdk-testpmd", coreFile}})
	w.vm.Do(rig.Request{Op: "write", Path: coreFile, Argv: []string{""}})
	var b strings.Builder
	fmt.Fprintf(&b, "gdb: %d, %v\n", r.Code, err)
	for line := range strings.Lines(r.Output) {
		if !strings.Contains(line, "file-backed mapping note") && strings.TrimSpace(line) != "" {
			b.WriteString(line)
		}
	}
	return b.String()
}

// within waits until ok reports true, and returns false if it has not by then.
func within(limit time.Duration, ok func() bool) bool {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// flood describes a sender outside whose frames go to the guest all the time.
type flood struct{ sent, back atomic.Int64 }

// sendsAllTheTime sends four frames each millisecond to an address until the test ends, and counts
// those that come back from it.
func (w *world) sendsAllTheTime(t *testing.T, mac net.HardwareAddr) *flood {
	t.Helper()
	f := &flood{}
	var port *lab.Port
	if err := w.outside.Do(func() (err error) {
		port, err = lab.OpenPort("wire0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 2)
	stop := make(chan struct{})
	go func() {
		defer func() { ended <- struct{}{} }()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for range 4 {
				n := f.sent.Add(1)
				port.Send(numbered(mac, port.MAC, 200, uint32(n)))
			}
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		buf := make([]byte, 2048)
		for {
			b, err := port.Recv(buf, time.Time{})
			if err != nil {
				return
			}
			if len(b) > 18 && string(b[6:12]) == string(mac) &&
				uint64(binary.BigEndian.Uint32(b[14:])) <= uint64(f.sent.Load()) {
				f.back.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		port.Close()
		<-ended
		<-ended
	})
	return f
}

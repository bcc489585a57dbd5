//go:build linux

package vm

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Errors, against the real kernel: wrong requests, missing privileges, a process that is killed, a
// driver that is removed, a device that fails.

// Capability numbers (include/uapi/linux/capability.h).
const capNetRaw, capIPCLock, capRawIO = 13, 14, 17

// confined is the command line of a program with fewer capabilities and a limit of locked memory; a
// limit below 0 is none.
func confined(memlock int, drop []int, argv ...string) []string {
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(drop), " ", ","), "[]")
	return append([]string{"/init", "confine", "-memlock", fmt.Sprint(memlock), "-drop", list},
		argv...)
}

func testErrors(t *testing.T, w *world) {
	t.Run("commands", func(t *testing.T) { testTalks(t, w) })
	t.Run("rings", func(t *testing.T) {
		w.runTests(t, nil, "/bin/dv.test",
			"-test.run", "^TestWrongOnDevice$")
	})
	w.expectRefused(t, "MODIFY_RQ", "MODIFY_SQ")
	t.Run("privileges", func(t *testing.T) { testPrivileges(t, w) })
	t.Run("MAC", func(t *testing.T) { testMAC(t, w) })
	t.Run("closing", func(t *testing.T) { testClosing(t, w) })
	t.Run("killing", func(t *testing.T) { testKilling(t, w) })
}

// runTests runs a test binary in the guest, on the device.
func (w *world) runTests(t *testing.T, env []string, argv ...string) {
	t.Helper()
	r, err := w.vm.Do(rig.Request{Op: "run", Argv: argv, Env: append(env, "RDMA_DEVICE=mlx5_0",
		"NEED=all"), Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("%s: exit %d, %v\n%s", strings.Join(argv, " "), r.Code, err, r.Output)
	}
}

// expectRefused checks that exactly these firmware commands have been refused so far.
func (w *world) expectRefused(t *testing.T, want ...string) {
	t.Helper()
	got := w.refused()
	names := slices.Sorted(maps.Keys(got))
	if !slices.Equal(names, want) {
		t.Errorf("firmware commands refused: %v, want %v", names, want)
	}
	w.refusals = got
}

// testTalks runs the exchanges of package uverbs with this kernel, and compares them with the
// recordings of this kernel and this card, which its tests use.
func testTalks(t *testing.T, w *world) {
	talk := func(name string) []string {
		return []string{"/bin/uverbs.test", "-test.run", "^TestTalkWithDevice$/^" + name + "$"}
	}
	for name, argv := range map[string][]string{
		"all":      talk("all"),
		"confined": confined(64<<10, []int{capNetRaw, capIPCLock, capRawIO}, talk("confined")...),
		"lockless": confined(0, []int{capIPCLock}, talk("lockless")...),
	} {
		trace := w.trace(t, argv...)
		file := filepath.Join(recordings,
			fmt.Sprintf("linux-%s-%s.%s.gz", w.kernel.Version, w.nic.Card().Name, name))
		if os.Getenv("UPDATE") != "" {
			writeRecording(t, file, trace)
			trace = w.trace(t, argv...) // which must say the same
		}
		if diff := firstDifference(trace, readRecording(t, file)); diff != "" {
			t.Errorf("%s is not what this kernel says, make test-vm KERNEL=%s CARD=%s UPDATE=1 "+
				"records anew: %s", file, w.kernel.Version, w.nic.Card().Name, diff)
		}
	}
}

// trace is what the kernel says in an exchange.
func (w *world) trace(t *testing.T, argv ...string) string {
	t.Helper()
	w.runTests(t, []string{"TALK_TRACE=/tmp/talk"}, argv...)
	return w.must(t, rig.Request{Op: "read", Path: "/tmp/talk"}).Output
}

// recordings is where the recordings are, for the tests of package uverbs.
const recordings = "../../dv/uverbs/testdata"

func writeRecording(t *testing.T, file, trace string) {
	t.Helper()
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	io.WriteString(z, trace)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readRecording(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// firstDifference compares two recordings call by call: the request, and the errno of the answer.
// Keys and numbers in the answers differ from run to run.
func firstDifference(a, b string) string {
	x, y := strings.Split(strings.TrimSpace(a), "\n"), strings.Split(strings.TrimSpace(b), "\n")
	for i := range min(len(x), len(y)) {
		type call struct{ Name, Errno string }
		var c, d call
		if json.Unmarshal([]byte(x[i]), &c) != nil ||
			json.Unmarshal([]byte(y[i]), &d) != nil || c != d {
			return fmt.Sprintf("call %d: %+v, recorded %+v", i+1, c, d)
		}
	}
	if len(x) != len(y) {
		return fmt.Sprintf("%d calls, recorded %d", len(x), len(y))
	}
	return ""
}

// testPrivileges starts our binary without a privilege it needs: it prints one line that says what
// to do, and leaves nothing behind.
func testPrivileges(t *testing.T, w *world) {
	serve := []string{"rdma-netstack", "serve", "http", "--device", "mlx5_0",
		"--address", slice4.String()}
	for _, c := range []struct {
		name string
		argv []string
		says string
	}{
		{"no CAP_NET_RAW", confined(-1, []int{capNetRaw}, serve...), "CAP_NET_RAW"},
		{"memory lock limit", confined(64<<10, []int{capIPCLock}, serve...),
			"MiB of locked memory"},
		{"no memory to lock", confined(0, []int{capIPCLock}, serve...), "MiB of locked memory"},
	} {
		out, code := w.try(t, c.argv...)
		if code != 1 || !strings.Contains(out, c.says) ||
			strings.Count(strings.TrimSpace(out), "\n") != 0 {
			t.Errorf("%s: exit %d, want 1 and a line about %q:\n%s", c.name, code, c.says, out)
		}
	}
	out, _ := w.try(t, confined(-1, []int{capNetRaw}, "rdma-netstack", "devices")...)
	contains(t, out, "mlx5_0", "no: raw queues on mlx5_0 need CAP_NET_RAW")
	if held := w.leftovers(t); held != "" {
		t.Errorf("the kernel holds:\n%s", held)
	}
	t.Run("enough", func(t *testing.T) { testEnough(t, w) })
}

// testEnough gives the process only what it needs: CAP_NET_RAW, and 32 MiB of locked memory.
func testEnough(t *testing.T, w *world) {
	argv := confined(32<<20, []int{capIPCLock}, "/init", "slice", "-mac", sliceMAC)
	s := w.sliceBy(t, argv)
	w.datagrams(t, slice4.Addr())
	s.stop(t)
}

// testMAC opens slices with addresses in use: the netdev's is refused, and so is that of another
// slice, which still receives every frame; a slice with another address can run at the same time,
// although its rules for broadcast and multicast are equal.
func testMAC(t *testing.T, w *world) {
	mac := strings.TrimSpace(w.must(t,
		rig.Request{Op: "read", Path: "/sys/class/net/eth0/address"}).Output)
	out, code := w.try(t, "rdma-netstack", "serve", "http", "--device", "mlx5_0", "--address",
		slice4.String(), "--mac", mac)
	if code != 1 || !strings.Contains(out, mac) {
		t.Errorf("the netdev's own MAC: exit %d:\n%s", code, out)
	}
	a := w.slice(t)
	out, code = w.try(t, "/init", "slice", "-mac", sliceMAC)
	want := "open mlx5_0: another program has MAC " + sliceMAC + " on this port"
	if code == 0 || !strings.Contains(out, want) ||
		strings.Count(strings.TrimSpace(out), "\n") != 0 {
		t.Errorf("another slice's MAC: exit %d, want one line with %q:\n%s", code, want, out)
	}
	b := w.slice(t, "-mac", "02:aa:00:00:00:04")
	w.datagrams(t, slice4.Addr())
	if echoed := [2]uint64{a.now(t).Echoed, b.now(t).Echoed}; echoed != [2]uint64{flows, 0} {
		t.Errorf("%d echoes, want %d and none", echoed, flows)
	}
	b.stop(t)
	a.stop(t)
}

// testClosing closes slices while the NIC has work in every send ring, and frames arrive.
func testClosing(t *testing.T, w *world) {
	stop := w.flooding(t)
	before := w.nic.Counters().SendWQEs
	out := w.run(t, "/init", "flood", "-mac", sliceMAC, "-rounds", "4")
	stop()
	contains(t, out, "posted ")
	if n := w.nic.Counters().SendWQEs - before; n == 0 {
		t.Error("the NIC was given nothing to send")
	}
	if held := w.leftovers(t); held != "" {
		t.Errorf("the kernel holds:\n%s", held)
	}
}

// testKilling ends a slice with kill -9 while frames arrive: the kernel releases all its objects,
// and no rule matches its address any more.
func testKilling(t *testing.T, w *world) {
	s := w.slice(t)
	stop := w.flooding(t)
	before := w.nic.Counters().Slice.RxPackets
	eventually(t, func() string { return "frames in the slice" },
		func() bool { return w.nic.Counters().Slice.RxPackets > before+100 })
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: s.job, Signal: 9, Timeout: patience})
	if err != nil || r.Code != 128+9 {
		t.Fatalf("kill -9: exit %d, %v", r.Code, err)
	}
	eventually(t, func() string { return "nothing held after kill -9:\n" + w.leftovers(t) },
		func() bool { return w.leftovers(t) == "" })
	missed := w.nic.Counters().Drops.SteerMissed
	eventually(t, func() string { return "frames for the dead slice being nobody's" },
		func() bool { return w.nic.Counters().Drops.SteerMissed > missed+100 })
	stop()
}

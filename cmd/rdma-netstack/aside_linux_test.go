package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLooks: servers do not give way, what looks at them does, for Wireshark, too.
func TestLooks(t *testing.T) {
	for command, want := range map[string]bool{"ss -i": true, "top": true, "capture -w x": true,
		"stats": true, "status": true, "status health dump tx": true,
		"profile cpu": true, "--extcap-interfaces": true,
		"serve http": false, "pktgen tx": false, "demo": false, "": false} {
		if looks(strings.Fields(command)) != want {
			t.Errorf("%q looks at a server: %v", command, !want)
		}
	}
}

// TestStandAside has a program that looks at a server give way with all of its threads.
func TestStandAside(t *testing.T) {
	server, _ := vethLab(t)
	d := newDrained(t, server, "192.0.2.10/24", "1s")
	top := d.program(strings.Fields("top --interval 10ms --json"))
	top.Env = append(top.Env, "RUNTIME_DIRECTORY="+d.admin)
	out := newGrowing()
	top.Stdout = out
	if err := d.launch(top); err != nil {
		t.Fatal(err)
	}
	defer top.Wait()
	defer top.Process.Kill()
	if err := out.await("queues"); err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(top.Process.Pid) + "/task")
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, th := range threads {
		id, _ := strconv.Atoi(th.Name())
		a, err := unix.SchedGetAttr(id, 0)
		if err != nil || a.Policy != unix.SCHED_BATCH || a.Nice < asideNice {
			t.Errorf("a thread of top: %+v, %v", a, err)
		}
	}
	if a, err := unix.SchedGetAttr(d.cmd.Process.Pid, 0); err != nil ||
		a.Policy != unix.SCHED_NORMAL {
		t.Errorf("the server: %+v, %v", a, err)
	}
}

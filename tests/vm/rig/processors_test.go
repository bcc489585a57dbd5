//go:build linux

package rig

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestProcessors asks a monitor that answers as QEMU's does, and one that hangs up.
func TestProcessors(t *testing.T) {
	const answer = "\r\nCPU#0\r\nRAX=0000000000000000 RBX=0000000000000001\r\n" +
		"RIP=ffffffff81487ae8 RFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\r\n" +
		"ES =0018 0000000000000000 ffffffff 00c00300\r\n" +
		"CPU#1\r\nRIP=ffffffff814d2a06 RFL=00000046 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=0\r\n"
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	path := filepath.Join(t.TempDir(), "monitor.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if i == 0 {
				fmt.Fprint(conn, "QEMU 11.1.3 monitor - type 'help' for more information\r\n",
					prompt)
				line, _ := bufio.NewReader(conn).ReadString('\n')
				fmt.Fprint(conn, line, answer, prompt)
			}
			conn.Close()
		}
	}()
	vm := &VM{cmd: cmd, m: Machine{Monitor: path}}
	said := vm.processors()
	for _, want := range []string{"thread sleep: ran ", ", waited ",
		"\nCPU#0\nRIP=ffffffff81487ae8 RFL=00000002 ", "\nCPU#1\nRIP=ffffffff814d2a06 "} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	if strings.Contains(said, "RAX") || strings.Contains(said, "\r") {
		t.Errorf("more than asked: %q", said)
	}
	if said := vm.processors(); !strings.Contains(said, "QEMU's monitor: ") {
		t.Errorf("a monitor that hangs up: %q", said)
	}
}

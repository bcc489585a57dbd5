package rig

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// monitorTimeout bounds what QEMU's monitor may take to answer.
const monitorTimeout = 5 * time.Second

// processors tells what the guest's processors do, for an error: for how long each of QEMU's
// threads ran and waited for a processor of this machine, and where in its code the guest is.
func (vm *VM) processors() string {
	var b strings.Builder
	pattern := fmt.Sprintf("/proc/%d/task/*", vm.cmd.Process.Pid)
	threads, _ := filepath.Glob(pattern) // fails for wrong patterns only
	for _, thread := range threads {
		ran, waited, err := threadTimes(thread)
		if err != nil {
			continue // it has ended
		}
		name, _ := os.ReadFile(filepath.Join(thread, "comm")) // as it may by now
		fmt.Fprintf(&b, "thread %s: ran %v, waited %v\n", strings.TrimSpace(string(name)),
			ran.Round(time.Millisecond), waited.Round(time.Millisecond))
	}
	answer, err := vm.ask("info registers -a")
	if err != nil {
		fmt.Fprintf(&b, "QEMU's monitor: %v\n", err)
	}
	for line := range strings.Lines(answer) {
		if strings.HasPrefix(line, "CPU#") || strings.HasPrefix(line, "RIP=") ||
			strings.HasPrefix(line, "EIP=") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// prompt ends each answer of QEMU's monitor.
const prompt = "(qemu) "

// ask gives QEMU's monitor a command and returns what it prints.
func (vm *VM) ask(command string) (string, error) {
	conn, err := net.DialTimeout("unix", vm.m.Monitor, monitorTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(monitorTimeout))
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", err
	}
	var said strings.Builder
	part := make([]byte, 4096)
	for strings.Count(said.String(), prompt) < 2 { // one before the command, one behind its answer
		n, err := conn.Read(part)
		said.Write(part[:n])
		if err != nil {
			return said.String(), err
		}
	}
	return strings.ReplaceAll(said.String(), "\r", ""), nil
}

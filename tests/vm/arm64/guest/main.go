//go:build linux

// Command guest is the init of the arm64 machine: it runs every program in /tests, prints how each
// ended, and powers off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func main() {
	for kind, at := range map[string]string{"proc": "/proc", "sysfs": "/sys",
		"devtmpfs": "/dev", "tmpfs": "/tmp"} {
		if err := unix.Mount(kind, at, kind, 0, ""); err != nil {
			fmt.Println("guest: mount", at, err)
		}
	}
	os.Setenv("HOME", "/tmp")
	programs, _ := filepath.Glob("/tests/*/*.test")
	for _, p := range programs {
		run(p)
	}
	fmt.Println("guest: done")
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// run runs the tests of one package in their directory, which contains their testdata.
func run(program string) {
	cmd := exec.Command(program, "-test.short", "-test.timeout=10m")
	cmd.Dir = filepath.Dir(program)
	out, err := cmd.CombinedOutput()
	verdict := "ok"
	if err != nil {
		verdict = fmt.Sprintf("FAIL (%v)\n%s", err, out)
	}
	fmt.Printf("guest: %s: %s\n", filepath.Base(program), verdict)
}

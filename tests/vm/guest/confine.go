//go:build linux

package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// confine is the subcommand: it runs a program with fewer capabilities and less locked memory than
// root has, or lets it leave a core file of any size behind.
//
//	confine -drop 13,14 -memlock 65536 PROGRAM ARGUMENTS
//	confine -core PROGRAM ARGUMENTS
func confine(args []string) error {
	fs := flag.NewFlagSet("confine", flag.ExitOnError)
	drop := fs.String("drop", "", "capability numbers, with commas between")
	memlock := fs.Int64("memlock", -1, "bytes the program may lock; below 0: as it is")
	core := fs.Bool("core", false, "leave a core file behind, where core_pattern says")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return fmt.Errorf("confine: no program")
	}
	path, err := exec.LookPath(fs.Arg(0))
	if err != nil {
		return err
	}
	if *core {
		limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
			return err
		}
	}
	if *memlock >= 0 {
		limit := unix.Rlimit{Cur: uint64(*memlock), Max: uint64(*memlock)}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			return err
		}
	}
	// The bounding set belongs to the thread, and this thread executes the program.
	runtime.LockOSThread()
	for _, s := range strings.FieldsFunc(*drop, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", n, err)
		}
	}
	return unix.Exec(path, fs.Args(), os.Environ())
}

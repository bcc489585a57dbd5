package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// gone waits until no process has this in its environment.
func gone(mark string) error {
	deadline := time.Now().Add(stepTime)
	for {
		pids, err := marked(mark)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := ended(pid, time.Until(deadline)); err != nil {
				return err
			}
		}
	}
}

// marked lists the processes with this in their environment. It skips processes that ended
// meanwhile, and those of other users that it may not read.
func marked(mark string) (pids []int, err error) {
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		env, readErr := os.ReadFile(path)
		if readErr != nil {
			continue
		}
		for _, entry := range bytes.Split(env, []byte{0}) {
			if string(entry) == mark {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				pids = append(pids, pid)
			}
		}
	}
	return pids, err
}

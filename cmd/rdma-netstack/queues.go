package main

import (
	"errors"
	"runtime"
	"strconv"
)

// queueCount is the value of --queues: a number, or 0 for auto.
type queueCount int

const (
	maxQueueCount = 64
	// maxAutoQueues is enough for the load of 16 processors on receive workers alone.
	maxAutoQueues = 16
	autoQueues    = "auto"
)

// number is how many queues it is here.
func (q queueCount) number() int {
	if q == 0 {
		return max(1, min(runtime.GOMAXPROCS(0)/2, maxAutoQueues))
	}
	return int(q)
}

// MarshalText implements encoding.TextMarshaler.
func (q queueCount) MarshalText() ([]byte, error) {
	if q == 0 {
		return []byte(autoQueues), nil
	}
	return strconv.AppendInt(nil, int64(q), 10), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *queueCount) UnmarshalText(text []byte) error {
	if string(text) == autoQueues {
		*q = 0
		return nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > maxQueueCount {
		return errors.New("want 1 to 64, or auto")
	}
	*q = queueCount(n)
	return nil
}

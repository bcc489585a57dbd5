package httpd

import "time"

// budget is how long a peer may still delay a transfer. It starts at most, waiting time is
// subtracted, and every floor bytes moved add one second, up to most again. A peer that moves floor
// bytes per second or more never uses it up; a slower one lasts for most and a little longer. It
// belongs to the goroutine that moves the bytes.
type budget struct {
	floor int64 // bytes per second
	most  time.Duration
	left  time.Duration
}

func newBudget(floor int64, most time.Duration) budget {
	return budget{floor: floor, most: most, left: most}
}

// waited subtracts d and adds the time of the n bytes that moved meanwhile.
func (b *budget) waited(d time.Duration, n int) {
	b.left = min(b.left-d+timeFor(int64(n), b.floor), b.most)
}

// timeFor is how long n bytes take at rate bytes per second.
func timeFor(n, rate int64) time.Duration {
	return time.Duration(n/rate)*time.Second + time.Duration(n%rate)*time.Second/time.Duration(rate)
}

// Command pause holds a pod's namespaces open. It sleeps until it is told to stop and reaps the orphans that are
// handed to it when the containers of a pod share one process namespace.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

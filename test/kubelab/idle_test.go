package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// After makeIdle there is room on the heap, and no collection before it is used.
func TestMakeIdle(t *testing.T) {
	const room = 128 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	makeIdle(room)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if free := before.HeapIdle - before.HeapReleased; free < room*9/10 {
		t.Errorf("%d bytes are free and in memory, want %d", free, room)
	}
	var kept []byte
	for range room / 2 >> 20 {
		kept = make([]byte, 1<<20)
	}
	runtime.KeepAlive(kept)
	runtime.ReadMemStats(&after)
	if n := after.NumGC - before.NumGC; n != 0 {
		t.Errorf("garbage was collected %d times while half of the room was used", n)
	}
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 0 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// Package ps is a parameter server over package mpi: tables of numbers, cut
// over servers that apply gradients to them, and workers that push gradients
// and pull values.
package ps

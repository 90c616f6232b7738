// Package train trains classifiers over a parameter server (package ps) or
// over collectives: data sets, models, and the run that brings them together.
// The arithmetic is gonum's.
package train

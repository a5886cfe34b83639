#!/bin/bash
#SBATCH --time=04:00:00 --cpus-per-task=8 --gres=gpu:1
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@60
python main.py train --auto-resume --run-name "job_$SLURM_JOB_ID" "$@" &
trap 'kill -USR1 $!' USR1  # a minute before its time is over, Slurm tells this shell, which tells the training
wait $! || wait $!         # the first wait ends with the signal, the second with the training
code=$?
[ $code -ne 138 ] || scontrol requeue "$SLURM_JOB_ID"  # 128 + USR1: saved, to be taken up
exit $code
